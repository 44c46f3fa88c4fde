"""`status`: sockets without a process behind them, and its text."""

import json
import os
import socket
import threading

import pytest

from jax_optireduce import __main__
from jax_optireduce.tools import status, status_sockets

_NAME = "0123abcd-3-4711.sock"

_EMPTY = {
    "version": 1,
    "pid": 4711,
    "rank": 3,
    "world_size": 4,
    "session": 1,
    "monotonic_s": 1.0,
    "members": [0, 1, 3],
    "calls": [],
    "calls_under_way": 0,
    "last_ended": None,
    "devices": [],
    "peers": [],
    "mute_lanes": [],
}


@pytest.fixture
def listening(tmp_path, monkeypatch):
    """A socket that takes connections and has not answered them yet."""
    monkeypatch.setattr(status_sockets, "ANSWER_S", 0.2)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / _NAME))
        listener.listen(1)
        yield listener


def answer(listener: socket.socket, text: bytes) -> threading.Thread:
    """Answers one client."""

    def run() -> None:
        client, _ = listener.accept()
        with client:
            client.sendall(text)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_socket_of_a_dead_process_is_removed_and_reported_once(tmp_path, capsys):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / _NAME))
        listener.listen()
    assert __main__.main(["status", str(tmp_path)]) == 1
    assert "rank 3, process 4711: dead" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert __main__.main(["status", str(tmp_path)]) == 1
    assert "no job found in" in capsys.readouterr().err


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "other.sock").touch()
    (tmp_path / _NAME).mkdir()
    __main__.main(["status", str(tmp_path)])
    assert (tmp_path / "other.sock").exists()
    assert (tmp_path / _NAME).exists()


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("clients", [0, 4])
def test_a_process_that_does_not_answer_is_not_taken_for_dead(tmp_path, clients):
    # A stopped process takes no connections: at some point the kernel refuses more.
    idle = [socket.socket(socket.AF_UNIX) for _ in range(clients)]
    for client in idle:
        client.setblocking(False)
        client.connect_ex(str(tmp_path / _NAME))
    (path,) = status_sockets.find([tmp_path])
    found = status_sockets.ask(path)
    assert found is not None
    assert found.state is status_sockets.State.NO_ANSWER
    assert "does not answer within 0.2 s" in found.reason
    assert path.exists()
    for client in idle:
        client.close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is closing"),
        (b'{"version": 1, "calls', "is closing"),
        (b"[]", "is closing"),
        (b'{"version": 99}', "another version of jax_optireduce"),
    ],
)
def test_a_wrong_answer_is_a_reason_and_no_traceback(tmp_path, listening, text, reason):
    thread = answer(listening, text)
    found = status_sockets.ask(tmp_path / _NAME)
    thread.join()
    assert found is not None
    assert reason in found.reason


def test_names_that_are_no_text_do_no_harm(tmp_path, listening):
    report = json.dumps({**_EMPTY, "last_ended": {"collective": "X"}}).encode()
    thread = answer(listening, report.replace(b"X", b"\xff"))
    found = status_sockets.ask(tmp_path / _NAME)
    thread.join()
    assert found is not None
    assert found.report["last_ended"]["collective"] == "\N{REPLACEMENT CHARACTER}"


def test_an_answer_without_calls_and_peers_is_shown(tmp_path, listening, capsys):
    thread = answer(listening, json.dumps(_EMPTY).encode())
    assert __main__.main(["status", str(tmp_path), "--interval", "0"]) == 0
    thread.join()
    shown = capsys.readouterr().out
    assert "rank 3, process 4711, members 0-1, 3" in shown
    assert "no call yet" in shown


def test_a_path_that_does_not_exist_is_a_usage_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        __main__.main(["status", str(tmp_path / "missing")])
    assert ended.value.code == 2
    assert "neither a socket nor a folder" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["-1", "x", "nan", "1e9"])
def test_a_wrong_interval_is_a_usage_error(interval):
    with pytest.raises(SystemExit) as ended:
        __main__.main(["status", "--interval", interval])
    assert ended.value.code == 2


def test_folders_of_other_users_are_left_out(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / _NAME))
        assert status_sockets.find([tmp_path]) == [tmp_path / _NAME]
        monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
        assert status_sockets.find([tmp_path]) == []


def test_calls_are_described_with_the_ranks_that_they_wait_for():
    call = {
        "collective": "grads",
        "sequence": 812,
        "mode": "exact",
        "bytes": 4096,
        "drain": False,
        "age_s": 61.2,
        "waiting_for": [1, 2],
        "absent": [2],
    }
    assert status.describe_call(call) == (
        "call 812 of 'grads' (exact, 4 KiB), under way for 61.2 s; waits for rank 2, "
        "which has not entered call 812 of 'grads', and for the rest of the data of "
        "rank 1"
    )
    done = {**call, "drain": True, "waiting_for": [], "absent": []}
    assert status.describe_call(done).startswith("drain, call 812 of 'grads'")
    assert "waits" not in status.describe_call(done)


def test_devices_and_lanes_that_are_waited_for_are_described():
    devices = {
        "collective": "x",
        "sequence": 3,
        "age_s": 0.5,
        "started": [2],
        "missing": [3],
    }
    rank = {**_EMPTY, "devices": [devices], "mute_lanes": [1]}
    assert status.describe(rank) == [
        (
            "call 3 of 'x' waits in this process for the devices of rank 3; rank 2 "
            "started it 500 ms ago"
        ),
        "no answer from lane 1: the host is overloaded",
    ]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0], "0"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0, 2-3, 7"), ([], "")],
)
def test_ranks_are_shown_as_spans(ranks, text):
    assert status.spans(ranks) == text
