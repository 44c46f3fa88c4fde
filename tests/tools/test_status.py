"""`status`: sockets without a process behind them, and its text."""

import contextlib
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


def die(*paths) -> None:
    """Leaves the sockets of dead processes at these paths."""
    for path in paths:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()


def test_a_dead_job_is_one_line_and_its_sockets_stay(tmp_path, capsys):
    paths = [tmp_path / f"0123abcd-{rank}-47{rank}.sock" for rank in (0, 1, 2, 5)]
    die(*paths)
    for _ in range(2):
        assert __main__.main(["status", str(tmp_path)]) == 1
        shown = capsys.readouterr().out
        assert shown == "Job 0123abcd: dead; ranks 0-2, 5 have not closed the session\n"
    assert sorted(tmp_path.iterdir()) == paths


def test_living_jobs_come_before_the_dead_which_are_one_line(
    tmp_path, listening, capsys
):
    die(*[tmp_path / f"{job:08x}-{job % 2}-{job + 1}.sock" for job in range(7)])
    thread = answer(listening, json.dumps(_EMPTY).encode())
    assert __main__.main(["status", str(tmp_path), "--interval", "0"]) == 0
    thread.join()
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("Job 0123abcd: 1 of 4 ranks answer here")
    assert shown.endswith(
        "7 jobs are dead; their 7 processes have not closed the sessions (--json lists "
        "them)"
    )


def peer(rank, **fields):
    """The state of one peer in a report."""
    return {
        "rank": rank,
        "state": "alive",
        "heard_ago_s": 0.1,
        "rtt_s": 1e-4,
        "calls_behind": 0,
        "bytes_sent": 0,
        "bytes_received": 0,
        "segments_sent": 0,
        "segments_retransmitted": 0,
        "segments_received": 0,
        "segments_late": 0,
        **fields,
    }


def test_many_ranks_are_one_line_for_those_in_the_same_state(tmp_path, capsys):
    waiting = {
        "collective": "grads",
        "sequence": 812,
        "mode": "exact",
        "bytes": 4096,
        "drain": False,
        "age_s": 61.2,
        "waiting_for": [7],
        "absent": [7],
    }
    last = {"collective": "grads", "sequence": 811, "state": "done", "ended_ago_s": 61}
    with contextlib.ExitStack() as stack:
        threads = []
        for rank in range(20):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(tmp_path / f"0123abcd-{rank}-{4700 + rank}.sock"))
            listener.listen()
            calls = [] if rank == 7 else [{**waiting, "age_s": 60 + rank / 100}]
            report = {
                **_EMPTY,
                "rank": rank,
                "world_size": 32,
                "members": list(range(32)),
                "calls": calls,
                "calls_under_way": len(calls),
                "last_ended": last,
                "peers": [peer(other) for other in range(32) if other != rank],
            }
            threads.append(answer(listener, json.dumps(report).encode()))
        assert __main__.main(["status", str(tmp_path), "--interval", "0"]) == 0
        for thread in threads:
            thread.join()
    shown = " ".join(capsys.readouterr().out.split())
    assert shown == (
        "Job 0123abcd: 20 of 32 ranks answer here "
        "rank 7, members 0-31 no call under way; call 811 of 'grads' ended 61.0 s ago "
        "ranks 0-6, 8-19, members 0-31 call 812 of 'grads' (exact, 4 KiB), under way "
        "for 60.2 s; waits for rank 7, which has not entered call 812 of 'grads' "
        "(status SOCKET shows one rank with its peers, --json all of them) "
        "ranks 20-31: no socket here; they are on other hosts, or have ended"
    )


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
