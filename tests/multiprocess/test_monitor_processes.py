"""Reports to users: slow ranks, short deadlines, stalled calls; and no false ones."""

import json
import signal

import pytest
import ranks

# Calls within which a slow rank has to be reported, including the output of the line.
_NAMED_WITHIN = 10

_STALL_TIMEOUT_S = 3.0


def _logged(rank: ranks.Rank) -> list[tuple[int, str]]:
    """Returns the lines of the log, each with its step."""
    lines = [line.split(" ", 1) for line in rank.lines("log ")]
    return [(int(step), line) for step, line in lines]


def test_a_rank_that_sleeps_in_every_step_is_named_by_the_others(tmp_path):
    with ranks.start(
        *("watched", "exact", "2", "0.2", "15", "15"), folder=tmp_path, world_size=3
    ) as started:
        started.succeed()
        for rank in started[:2]:
            ((slow, named),) = _logged(rank)
            assert slow < _NAMED_WITHIN, started.describe()
            assert "rank 2 is slow" in named
            assert "'grads " in named
        assert _logged(started[2]) == [], started.describe()


def test_a_rank_that_comes_too_late_for_lossy_calls_is_named(tmp_path):
    with ranks.start(
        *("watched", "lossy", "2", "0.4", "20", "20"),
        folder=tmp_path,
        world_size=3,
        options={"deadline_s": 0.1},
    ) as started:
        started.succeed(0, 1)
        for rank in started[:2]:
            ((step, line),) = _logged(rank)
            behind = [float(row.split()[2]) for row in rank.lines("step ")]
            first = next(i for i, seconds in enumerate(behind) if seconds > 0)
            assert step < first + _NAMED_WITHIN, started.describe()
            assert "rank 2 is slow: none of its data arrived in time" in line


@pytest.mark.parametrize(
    ("mode", "faults"), [("bounded", ""), ("lossy", "loss=0.02,seed=3")]
)
def test_a_healthy_run_logs_nothing(tmp_path, mode, faults):
    with ranks.start(
        *("watched", mode, "-1", "0", "0", "50"),
        folder=tmp_path,
        world_size=3,
        # A learned deadline may be shorter than the delays of a busy machine.
        options={"deadline_s": 1.0, "faults": faults},
    ) as started:
        started.succeed()
        assert [_logged(rank) for rank in started] == [[], [], []], started.describe()


def test_deadlines_that_their_bound_makes_too_short_are_told(tmp_path):
    # No datagram arrives within the 10 ms of the first stage, nor within the call.
    options = {"deadline_max_s": 0.02, "faults": "delay_s=0.05", "lanes": 2}
    with ranks.start(
        *("watched", "bounded", "-1", "0", "0", "60"),
        folder=tmp_path,
        world_size=3,
        options=options,
    ) as started:
        started.succeed()
        for rank in started:
            lines = [line for _, line in _logged(rank) if "deadline_max_s" in line]
            assert lines, started.describe()
            assert "calls of 'grads " in lines[0]
            assert "set deadline_max_s=0." in lines[0]


def test_a_frozen_rank_leaves_a_flight_record_and_the_call_goes_on(tmp_path):
    options = {"stall_timeout_s": _STALL_TIMEOUT_S, "peer_timeout_s": 60}
    with ranks.start(
        "frozen", folder=tmp_path, world_size=3, options=options
    ) as started:
        started.wait_for(2, "frozen")
        for rank in (0, 1):
            started.wait_for(rank, "log ")
        started[2].process.send_signal(signal.SIGCONT)
        started.succeed()
        for number, rank in enumerate(started[:2]):
            (line,) = rank.lines("log ")
            assert "call 1 of 'grads mesh=" in line
            assert "has been under way for" in line
            assert "waits for rank 2, whose data for this call is missing" in line
            pattern = f"jax_optireduce-flight-{number}-*-0.jsonl"
            (path,) = (tmp_path / ranks.RECORDS).glob(pattern)
            assert str(path) in line
            head, first, stalled = map(json.loads, path.read_text().splitlines())
            assert head["rank"] == number
            assert first["state"] == "done"
            assert stalled["state"] == "under way"
            assert stalled["collective"].startswith("grads ")
            assert stalled["sequence"] == 1
            assert (stalled["waiting_for"], stalled["absent"]) == ([2], [2])
            assert stalled["elapsed_s"] >= _STALL_TIMEOUT_S
