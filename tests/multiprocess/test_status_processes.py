"""`status` and `analyse` on a job whose ranks are stuck in different ways."""

import json
import stat

import pytest
import ranks

from jax_optireduce import __main__
from jax_optireduce.tools import status_sockets

_WORLD_SIZE = 5


@pytest.fixture
def verb(capsys):
    """Runs a verb in this process; returns its exit code and its output."""

    def run(*arguments) -> tuple[int, str]:
        capsys.readouterr()
        code = __main__.main([str(argument) for argument in arguments])
        return code, capsys.readouterr().out

    return run


def check_healthy(code, output, sockets):
    """Checks the report of a job in which every rank is between two calls."""
    assert code == 0, output
    (job,) = json.loads(output)["jobs"]
    assert job["world_size"] == _WORLD_SIZE
    for rank in job["ranks"][:-1]:
        assert rank["state"] == "answered"
        assert rank["members"] == list(range(_WORLD_SIZE))
        assert (rank["calls"], rank["calls_under_way"]) == ([], 0)
        assert rank["last_ended"]["collective"].startswith("grads ")
        assert (rank["last_ended"]["sequence"], rank["last_ended"]["mode"]) == (
            0,
            "exact",
        )
        peers = rank["peers"]
        assert len(peers) == _WORLD_SIZE - 1
        for peer in peers:
            assert (peer["state"], peer["calls_behind"]) == ("alive", 0)
            assert peer["bytes_sent"] > 0 < peer["bytes_received"]
            assert peer["bytes_sent_per_s"] is not None
            assert peer["loss"] is not None
            assert peer["heard_ago_s"] > 0
    # Rank 4 has no socket here.
    assert job["ranks"][4]["state"] == "elsewhere"
    assert len(job["ranks"][4]["seen_by"]) == _WORLD_SIZE - 1
    assert len(list(sockets.iterdir())) == _WORLD_SIZE - 1
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in sockets.iterdir()}
    assert modes == {0o600}


def check_stuck(code, output, pids, sockets):
    """Checks the text about ranks that wait, hold the GIL, are stopped and are dead."""
    assert code == 1
    lines = output.splitlines()
    assert all(len(line) <= 80 for line in lines), output
    words = " ".join(output.split())
    assert "2 of 5 ranks answer here" in words
    assert f"rank 0, process {pids[0]}, members 0-4" in words
    assert "call 1 of 'grads mesh=" in words
    assert "(exact, 19.5 KiB), under way for" in words
    assert "waits for ranks 1, 2 and 3, which have not entered call 1 of" in words
    assert f"rank 1, process {pids[1]}, members" in words
    assert "no call under way; call 0 of 'grads mesh=" in words
    assert f"rank 2, process {pids[2]}: does not answer within" in words
    assert "it is stopped (SIGSTOP)" in words
    assert f"rank 3, process {pids[3]}: dead: it has not closed the session" in words
    assert "rank 0 sees it: alive, heard" in words
    assert "1 call behind" in words
    assert "rank 4: no socket here" in words
    assert list(sockets.glob("*-3-*.sock")), "a verb that looks removes nothing"
    (row,) = [line for line in lines if line.split()[:2] == ["3", "alive"]][:1]
    assert row.split()[-1] == "1"


def check_again(code, output):
    """Checks the JSON of the same job."""
    assert code == 1
    (job,) = json.loads(output)["jobs"]
    states = [rank["state"] for rank in job["ranks"]]
    assert states == ["answered", "answered", "no answer", "dead", "elsewhere"]
    (call,) = job["ranks"][0]["calls"]
    assert (call["mode"], call["sequence"]) == ("exact", 1)
    assert call["absent"] == [1, 2, 3]
    assert {seen["rank"]: seen["calls_behind"] for seen in job["ranks"][3]["seen_by"]}[
        0
    ] == 1


def test_stuck_ranks_are_shown_and_the_records_name_them(tmp_path, verb, monkeypatch):
    go, sockets = tmp_path / "go", tmp_path / "jax_optireduce"
    monkeypatch.setattr(status_sockets, "ANSWER_S", 20.0)
    with ranks.start(
        *("stuck", str(go)),
        folder=tmp_path,
        world_size=_WORLD_SIZE,
        options={"stall_timeout_s": 2, "peer_timeout_s": 90},
    ) as started:
        for rank in range(_WORLD_SIZE):
            started.wait_for(rank, "ready")
        # As if rank 4 ran on another host.
        (there,) = sockets.glob("*-4-*.sock")
        there.unlink()
        code, output = verb("status", "--json", "--interval", "0.1", sockets)
        check_healthy(code, output, sockets)
        go.touch()
        for rank in range(_WORLD_SIZE):
            started.wait_for(rank, "goes on")
        for rank in (0, 4):
            started.wait_for(rank, "log ")
        pids = [rank.process.pid for rank in started]
        monkeypatch.setattr(status_sockets, "ANSWER_S", 4.0)
        code, output = verb("status", sockets)
        check_stuck(code, output, pids, sockets)
        code, output = verb("status", "--json", sockets)
        check_again(code, output)
        files = list((tmp_path / ranks.RECORDS).glob("*.jsonl"))
        code, output = verb("analyse", *files)
        assert code == 1
        words = " ".join(output.split())
        assert "ranks 1, 2 and 3 never entered call 1 of 'grads mesh=" in words
        assert "ranks 0 and 4 wait for them for " in words
        assert "2 of 5 ranks have files. Missing: ranks 1, 2 and 3." in words
