"""A rank dies, and the others continue training while they are a majority."""

import re
import signal

import pytest
import ranks

_PEER_TIMEOUT_S = 2.0
# A mean is over the ranks that take part, and a stall of the machine that is longer
# than the deadline makes a rank skip a call: the sum of the means would not be that of
# the gradients.
_OPTIONS = {"peer_timeout_s": _PEER_TIMEOUT_S, "deadline_s": 1.0}

_LAST, _OTHERS = 3, (0, 1, 2)


def _start(folder, mode, *more, step_s, steps, coordinator=False, **options):
    """Starts 4 ranks that make some more steps after one of them has gone."""
    return ranks.start(
        *("survivors", mode, str(step_s), str(steps), *more),
        folder=folder,
        world_size=4,
        options={**_OPTIONS, **options},
        coordinator=coordinator,
    )


def _check_trained_on(
    started: ranks.Ranks,
    dead: int = _LAST,
    # The distances of 1, 2 and 3 from their mean.
    drifts: tuple[float, ...] = (1, 0, 1 / 3, 0),
) -> None:
    """Checks that the others continued, with means over three, and ended regularly."""
    others = [number for number in range(4) if number != dead]
    started.succeed(*others)
    bits = set()
    for number in others:
        rank = started[number]
        assert rank.lines("alone") == ["3"], started.describe()
        (line,) = rank.lines("conserved")
        error, live, _ = map(float, line.split())
        # A third is rounded.
        assert error < 0.01, started.describe()
        assert live == 3, started.describe()
        (line,) = rank.lines("drift")
        expected = pytest.approx(drifts, rel=1 / 3)
        assert tuple(map(float, line.split())) == expected, started.describe()
        (removal,) = [line for line in rank.lines("log") if "removed" in line]
        assert removal.startswith(f"rank {dead} removed from the session")
        assert "3 ranks continue" in removal
        bits.update(rank.lines("bits"))
    assert len(bits) == 1, started.describe()
    records = started[0].path.parent / ranks.RECORDS
    recorded = {int(path.name.split("-")[2]) for path in records.iterdir()}
    assert recorded >= set(others)


def test_the_others_train_on_without_a_killed_rank_and_exit_well(tmp_path):
    # They train for longer than JAX's heartbeat timeout for the process, and wait for
    # no announcement of it: that would take longer than the test may.
    options = {"heartbeat_timeout_s": 4, "shutdown_timeout_s": 10_000}
    with _start(tmp_path, "bounded", step_s=0.04, steps=200, **options) as started:
        started.wait_for(_LAST, "step 20")
        started[_LAST].process.kill()
        _check_trained_on(started)


def test_a_rank_that_was_stopped_for_too_long_is_told_that_it_was_removed(tmp_path):
    with _start(tmp_path, "bounded", step_s=0.02, steps=100) as started:
        started.wait_for(_LAST, "step 20")
        started[_LAST].process.send_signal(signal.SIGSTOP)
        for number in _OTHERS:
            started.wait_for(number, "alone")
        started[_LAST].process.send_signal(signal.SIGCONT)
        started.wait(_LAST)
        last = started[_LAST]
        assert last.code == 1, started.describe()
        error = r"JaxRuntimeError: .*this rank, 3, was removed from the session"
        assert re.search(error, last.output), started.describe()
        assert last.lines("typed") == [f"PeerLost {_LAST}"], started.describe()
        assert any("this process, rank 3, was removed" in x for x in last.lines("log"))
        _check_trained_on(started)


@pytest.mark.long
@pytest.mark.parametrize("lane", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_rank_with_one_dead_lane_is_removed_from_whole_buckets(tmp_path, lane):
    dead = {_LAST: {"faults": f"lane={lane},silent_after_s=8"}}
    with ranks.start(
        *("whole_buckets", "0.05", "30"),
        folder=tmp_path,
        world_size=4,
        options={**_OPTIONS, "lanes": 2},
        options_of=dead,
    ) as started:
        started.wait(_LAST)
        last = started[_LAST]
        assert last.code == 1, started.describe()
        # The working lane informs the rank, unless it first notices that it reaches no
        # other.
        error = "rank, 3, was removed from the session|only 1 of the 4 ranks"
        assert re.search(f"JaxRuntimeError: .*({error})", last.output)
        started.succeed(*_OTHERS)
        for rank in (started[i] for i in _OTHERS):
            assert rank.lines("alone") == ["3"], started.describe()
            assert rank.lines("strange") == ["0 0"], started.describe()


def test_half_of_the_ranks_do_not_go_on_and_say_how_many_are_left(tmp_path):
    with _start(tmp_path, "bounded", step_s=0.02, steps=100) as started:
        for number in (2, 3):
            started.wait_for(number, "step 20")
        for number in (2, 3):
            started[number].process.kill()
        started.wait(limit_s=60.0)
        for rank in started[:2]:
            assert rank.code == 1, started.describe()
            # The rank that ends later has seen the other one leave.
            error = r"JaxRuntimeError: .*only [12] of the 4 ranks"
            assert re.search(error, rank.output), started.describe()
            assert not rank.lines("alone")


def test_the_death_of_process_0_ends_all_others(tmp_path):
    with _start(tmp_path, "bounded", step_s=0.02, steps=100) as started:
        started.wait_for(0, "step 20")
        started[0].process.kill()
        started.wait()
        # JAX ends them: its coordination service ran in process 0.
        assert {rank.code for rank in started[1:]} == {-signal.SIGABRT}


def test_with_a_coordinator_the_others_train_on_without_process_0(tmp_path):
    # None of them waits for the announcement of another one.
    options = {"heartbeat_timeout_s": 4, "shutdown_timeout_s": 10_000}
    with _start(
        *(tmp_path, "bounded", "first"),
        step_s=0.04,
        steps=200,
        coordinator=True,
        **options,
    ) as started:
        started.wait_for(0, "step 20")
        started[0].process.kill()
        # The distances of 2, 3 and 4 from their mean.
        _check_trained_on(started, dead=0, drifts=(0, 1 / 2, 0, 1 / 4))
