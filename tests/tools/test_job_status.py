"""`status --coordinator`: the reports of ranks, and strangers at their port."""

import contextlib
import json
import random
import socket
import threading
import time

import pytest

from jax_optireduce import __main__
from jax_optireduce._session import reports, roll_call
from jax_optireduce.tools import job_reports, launch

# Only a hang takes longer.
_LIMIT_S = 60.0

_REPORT = {
    "rank": 0,
    "replica": "",
    "life": 1,
    "pid": 4711,
    "host": "node0",
    "session": 0,
    "step": None,
    "state": "running",
    "reason": "",
    "live_processes": 3,
    "participation": 1.0,
    "skipped": 0.0,
    "calls_completed": 812,
    "calls_failed": 0,
    "calls_skipped": 0,
    "call": "",
    "call_age_s": 0.0,
    "waiting_for": [],
    "absent": [],
    "calls_behind": [],
}


@pytest.fixture
def processes():
    """The number of processes of the job; None: replicas."""
    return 3


@pytest.fixture
def coordinator(processes):
    """The address of a coordinator that takes reports only."""
    with launch.reserved_ports(2) as port:
        address = f"127.0.0.1:{port}"
        listener = roll_call.listen(reports.address_beside(address))
        job_reports.serve(listener, processes)
        yield address


def connect(coordinator: str) -> socket.socket:
    return roll_call.connect(reports.address_beside(coordinator), _LIMIT_S)


def line(**changes) -> bytes:
    return json.dumps(_REPORT | changes).encode() + b"\n"


@pytest.fixture
def ask(coordinator, capsys):
    """Returns the exit code, and the ranks in the order in which they are shown."""

    def run() -> tuple[int, list[dict]]:
        capsys.readouterr()
        code = __main__.main(["status", "--coordinator", coordinator, "--json"])
        return code, json.loads(capsys.readouterr().out)["ranks"]

    return run


def await_ranks(ask, until) -> tuple[int, list[dict]]:
    """Asks until the ranks, by number, are as a test expects."""
    end = time.monotonic() + _LIMIT_S
    while True:
        code, ranks = ask()
        if until({rank["rank"]: rank for rank in ranks}):
            return code, ranks
        assert time.monotonic() < end, ranks
        time.sleep(0.02)


def states(*expected):
    return lambda ranks: tuple(ranks[i]["state"] for i in sorted(ranks)) == expected


def test_a_rank_is_missing_then_running_then_away(coordinator, ask):
    assert ask() == (
        1,
        [
            {
                "rank": rank,
                "state": "missing",
                "unusual": {"missing": "has not reported yet"},
            }
            for rank in range(3)
        ],
    )
    with connect(coordinator) as one:
        one.sendall(line(rank=1))
        _, shown = await_ranks(ask, states("missing", "running", "missing"))
        assert [rank["rank"] for rank in shown] == [0, 2, 1]
        assert shown[2].items() >= (_REPORT | {"rank": 1, "unusual": {}}).items()
    code, shown = await_ranks(ask, states("missing", "away", "missing"))
    assert code == 1
    assert [rank["rank"] for rank in shown] == [1, 0, 2]
    assert "away" in shown[0]["unusual"]


def test_a_rank_that_has_ended_is_not_away_and_one_that_failed_is_first(
    coordinator, ask
):
    with connect(coordinator) as running:
        running.sendall(line())
        with connect(coordinator) as one, connect(coordinator) as two:
            one.sendall(line(rank=1) + line(rank=1, state="ended", reason="it exits"))
            two.sendall(line(rank=2, state="ended", reason="it exits"))
        code, _ = await_ranks(ask, states("running", "ended", "ended"))
        assert code == 0
        with connect(coordinator) as two:
            two.sendall(line(rank=2, life=2, state="failed", reason="it exits"))
        code, shown = await_ranks(ask, states("running", "ended", "failed"))
        assert (code, shown[0]["rank"]) == (1, 2)
        assert shown[0]["unusual"]["failed"].endswith("it exits, after an error")


def test_an_earlier_life_does_not_replace_a_later_one(coordinator, ask):
    with connect(coordinator) as first, connect(coordinator) as second:
        first.sendall(line())
        await_ranks(ask, states("running", "missing", "missing"))
        second.sendall(line(life=2))
        await_ranks(ask, lambda ranks: ranks[0].get("life") == 2)
        assert first.recv(1) == b""
        with connect(coordinator) as again:
            again.sendall(line())
            assert again.recv(1) == b""
        _, shown = ask()
        assert (shown[-1]["life"], shown[-1]["state"]) == (2, "running")


def test_a_rank_for_which_others_wait_is_shown_before_them(coordinator, ask):
    call = {"call": "call 812 of 'grads'", "call_age_s": 61.2}
    with (
        connect(coordinator) as zero,
        connect(coordinator) as one,
        connect(coordinator) as two,
    ):
        zero.sendall(line(**call, waiting_for=[2], absent=[2], calls_behind=[[2, 1]]))
        one.sendall(
            line(rank=1, **call, waiting_for=[2], absent=[2], calls_behind=[[2, 2]])
        )
        two.sendall(line(rank=2, calls_completed=811))
        code, shown = await_ranks(ask, states("running", "running", "running"))
    assert code == 0
    assert [rank["rank"] for rank in shown] == [2, 0, 1]
    assert shown[0]["unusual"] == {
        "waited for": "ranks 0 and 1 wait for it in call 812 of 'grads', which it has "
        "not entered",
        "behind": "1 call behind the others",
    }
    expected = {"in call": "in call 812 of 'grads' for 61.2 s, waits for rank 2"}
    assert shown[1]["unusual"] == shown[2]["unusual"] == expected


def test_the_table_has_one_line_for_each_rank(coordinator, ask, capsys):
    with connect(coordinator) as zero, connect(coordinator) as two:
        zero.sendall(line(step=40, participation=0.975, skipped=0.25))
        two.sendall(line(rank=2, session=-1, live_processes=None, skipped=None))
        await_ranks(ask, states("running", "missing", "running"))
        assert __main__.main(["status", "--coordinator", coordinator]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert all(len(row) <= 80 for row in shown)
    assert shown[0] == "3 ranks: 1 missing, 2 running"
    assert shown[1] == "rank 1: has not reported yet"
    assert shown[2] == (
        "rank 2 on node0, process 4711: waits until the others admit it"
    )
    assert shown[3] == "rank 0 on node0, process 4711: skips 25.0 % of the calls"
    assert [row.split() for row in shown[4:]] == [
        [
            *("rank", "state", "life", "session", "step", "live", "calls"),
            *("participation", "skipped"),
        ],
        ["1", "missing", "-", "-", "-", "-", "-", "-", "-"],
        ["2", "running", "1", "-", "-", "-", "812", "100.0", "%", "-"],
        ["0", "running", "1", "0", "40", "3", "812", "97.5", "%", "25.0", "%"],
    ]


@pytest.mark.parametrize("processes", [None])
def test_replicas_are_shown_by_their_names(coordinator, ask, capsys):
    call = {"call": "call 4 of 'grads'", "call_age_s": 2.5, "waiting_for": [7]}
    with connect(coordinator) as one, connect(coordinator) as two:
        one.sendall(line(rank=1, replica="berlin", **call))
        two.sendall(line(rank=7, replica="oslo"))
        await_ranks(ask, states("running", "running"))
        assert __main__.main(["status", "--coordinator", coordinator]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "2 replicas: 2 running"
    assert shown[1].startswith(
        "replica 'oslo' on node0, process 4711: replica 'berlin'"
    )
    words = " ".join(shown).split("replica 'berlin' on node0, process 4711: ")[1]
    assert words.startswith("in call 4 of 'grads' for 2.5 s, waits for replica 'oslo'")
    assert [row.split()[0] for row in shown[-3:]] == ["replica", "oslo", "berlin"]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("processes", [None])
def test_replicas_that_are_gone_make_room_for_others(request, monkeypatch):
    monkeypatch.setattr(job_reports, "_REPLICAS_MAX", 2)
    coordinator, ask = map(request.getfixturevalue, ("coordinator", "ask"))
    with connect(coordinator) as one, connect(coordinator) as two:
        one.sendall(line(rank=4, replica="d"))
        with connect(coordinator) as gone:
            gone.sendall(line(rank=5, replica="e"))
            await_ranks(ask, states("running", "running"))
        await_ranks(ask, lambda ranks: ranks[5]["state"] == "away")
        two.sendall(line(rank=6, replica="f"))
        await_ranks(ask, lambda ranks: sorted(ranks) == [4, 6])
        with connect(coordinator) as third:
            third.sendall(line(rank=7, replica="g"))
            assert third.recv(1) == b""


@pytest.mark.parametrize(
    "sent",
    [
        random.Random(7).randbytes(5000) + b"\n",
        b"[" * 20_000 + b"\n",
        b"{}\n",
        line(rank=3),
        line(rank=-1),
        line(state="well"),
        line(replica="\x1b[2J"),
        line(waiting_for=["x"]),
        line(calls_behind=[[1]]),
        b"x" * (reports.LINE_BYTES_MAX + 1),
        line(reason="x" * reports.LINE_BYTES_MAX),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=lambda sent: ascii(sent[:24]),
)
def test_a_stranger_is_disconnected(coordinator, ask, sent):
    with connect(coordinator) as zero, connect(coordinator) as stranger:
        zero.sendall(line())
        await_ranks(ask, states("running", "missing", "missing"))
        with contextlib.suppress(ConnectionError):  # It has not read all.
            stranger.sendall(sent)
            assert stranger.recv(1) == b""
        _, shown = ask()
        assert states("running", "missing", "missing")(
            {rank["rank"]: rank for rank in shown}
        )


def test_connections_that_send_nothing_take_no_place_of_others(coordinator, ask):
    with connect(coordinator) as zero:
        zero.sendall(line())
        await_ranks(ask, states("running", "missing", "missing"))
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(connect(coordinator)) for _ in range(300)]
            with contextlib.suppress(ConnectionError):
                assert silent[0].recv(1) == b""
            zero.sendall(line(step=7))
            await_ranks(ask, lambda ranks: ranks[0].get("step") == 7)


def test_no_coordinator_is_an_error_that_names_both_ports(capsys):
    with launch.reserved_ports(2) as port:
        assert __main__.main(["status", "--coordinator", f"127.0.0.1:{port}"]) == 1
    error = capsys.readouterr().err
    assert f"no coordinator answers at 127.0.0.1:{port + 1}" in error
    assert "both TCP ports must be open" in error


def test_an_answer_that_is_none_is_an_error(capsys):
    with launch.reserved_ports(2) as port:
        address = f"127.0.0.1:{port}"
        with roll_call.listen(reports.address_beside(address)) as other:
            other.setblocking(True)

            def run():
                client, _ = other.accept()
                with client:
                    client.recv(1000)
                    client.sendall(b"220 smtp ready\n")

            thread = threading.Thread(target=run)
            thread.start()
            assert __main__.main(["status", "--coordinator", address]) == 1
            thread.join()
    assert "no coordinator answers" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["node0", "node0:", "node0:x"])
def test_an_address_without_a_port_is_a_usage_error(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        __main__.main(["status", "--coordinator", text])
    assert "is not HOST:PORT" in capsys.readouterr().err
