"""SlowRankDetector: the rank that most calls wait for, and its recovery.

Times are in seconds; the class reads no clock.
"""

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

# The values in slow_rank.h.
_WINDOW = 10
_SLOW_CALLS = 8
_BEHIND_MIN_S = 0.02
_PAUSE_S = 60.0
_RECOVERED_S = 10.0

# A step of training, and the duration of a call without a wait.
_STEP_S = 0.5
_CALL_S = 0.01


def add_steps(monitor, calls, *, start=0, name="grads", step_s=_STEP_S):
    """Adds (rank, behind) in steps; returns [(call, events)]."""
    events = []
    for i, (rank, behind) in enumerate(calls, start):
        event = monitor.add(name, (i + 1) * step_s, rank, behind, behind + _CALL_S)
        if event is not None:
            events.append((i, event))
    return events


def test_a_rank_that_sleeps_in_every_step_is_named_once_within_ten_calls():
    monitor = native.SlowRankDetector()
    ((call, event),) = add_steps(monitor, [(3, 0.2)] * 100)
    assert call < _WINDOW
    assert (event["kind"], event["rank"], event["collective"]) == ("slow", 3, "grads")
    assert event["waited"] == event["calls"] == _SLOW_CALLS
    assert event["behind_s"] == pytest.approx(0.2)
    assert event["elapsed_s"] == pytest.approx(0.21)


def test_recovery_is_told_once_and_a_relapse_after_a_pause_again():
    monitor = native.SlowRankDetector()
    pause = int(_PAUSE_S / _STEP_S)
    phases = [(3, 0.2)] * 20 + [(1, 0.0)] * 40 + [(3, 0.2)] * 2 * pause
    events = add_steps(monitor, phases)
    assert [event["kind"] for _, event in events] == ["slow", "recovered", "slow"]
    assert [event["rank"] for _, event in events] == [3, 3, 3]
    assert 20 + _RECOVERED_S / _STEP_S <= events[1][0] < 30 + _RECOVERED_S / _STEP_S
    assert events[1][0] + pause <= events[2][0] < 70 + pause


@pytest.mark.parametrize("step_s", [0.001, 0.02, 0.3])
def test_a_rank_that_is_slow_now_and_then_stays_slow(step_s):
    monitor = native.SlowRankDetector()
    # Each phase lasts longer than the window, and less than the time of a recovery.
    phases = ([(3, 0.2)] * 15 + [(1, 0.0)] * 15) * 40
    ends = itertools.accumulate(behind + step_s for _, behind in phases)
    events = [
        monitor.add("grads", end, rank, behind, behind + 0.0005)
        for end, (rank, behind) in zip(ends, phases, strict=True)
    ]
    assert [event["kind"] for event in events if event] == ["slow"]


def test_a_rank_at_the_edge_is_told_ever_less_often():
    monitor = native.SlowRankDetector()
    phases = ([(3, 0.2)] * 20 + [(1, 0.0)] * 40) * 40
    events = add_steps(monitor, phases)
    # 20 minutes, in which the rank crosses both thresholds 40 times.
    assert len(phases) * _STEP_S == 20 * 60
    assert 4 <= len(events) <= 10
    slow = [call for call, event in events if event["kind"] == "slow"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(slow)]
    assert pauses == sorted(pauses)
    # Much later, slowness is a new event.
    late = add_steps(monitor, [(1, 0.0)] * 40, start=40_000)
    late += add_steps(monitor, [(3, 0.2)] * 20, start=40_040)
    assert late[-1][1]["kind"] == "slow"


def test_a_dead_rank_has_not_recovered_when_others_are_missing_as_well():
    monitor = native.SlowRankDetector()
    slow = [monitor.add("g", i, 2, 0.001, 0.002, absent=[2]) for i in range(10)]
    assert [event["rank"] for event in slow if event] == [2]
    # The call names one of several absent ranks.
    both = [monitor.add("g", 10 + i, 1, 0.001, 0.002, absent=[1, 2]) for i in range(20)]
    assert [event["kind"] for event in both if event] == ["slow"]
    # Calls that do not wait for the rank still lack its data.
    alone = [monitor.add("g", 30 + i, 0, 0.0, 0.002, absent=[2]) for i in range(20)]
    assert [(event["kind"], event["rank"]) for event in alone if event] == [
        ("recovered", 1)
    ]


def test_calls_that_all_others_were_past_tell_nothing():
    monitor = native.SlowRankDetector()
    ((_, slow),) = add_steps(monitor, [(1, 0.2)] * 10)
    assert slow["kind"] == "slow"
    assert not any(
        monitor.add("grads", 5 + i, 0, 0.0, 0.001, passed=True) for i in range(20)
    )


def test_a_rank_whose_data_never_comes_in_time_is_named_however_short_the_deadline():
    monitor = native.SlowRankDetector()
    events = [monitor.add("g", i, 2, 0.001, 0.002, absent=[2]) for i in range(20)]
    (event,) = [event for event in events if event]
    assert (event["rank"], event["absent"]) == (2, _SLOW_CALLS)


@hypothesis.given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(0, 0.9 * _BEHIND_MIN_S)), max_size=100
    )
)
def test_small_waits_are_never_told(calls):
    assert add_steps(native.SlowRankDetector(), calls) == []


@hypothesis.given(
    st.lists(st.integers(0, 3), min_size=1, max_size=200), st.floats(0.03, 10)
)
def test_only_a_rank_that_most_of_the_last_calls_waited_for_is_named(ranks, behind):
    events = dict(add_steps(native.SlowRankDetector(), [(r, behind) for r in ranks]))
    slow, rests = set(), set()
    for i in range(len(ranks)):
        last = ranks[max(0, i + 1 - _WINDOW) : i + 1]
        event = events.get(i)
        if event is None:
            # A slow rank was reported before, or has recovered recently.
            assert all(
                last.count(r) < _SLOW_CALLS or r in slow or r in rests for r in range(4)
            )
        elif event["kind"] == "slow":
            assert last.count(event["rank"]) == event["waited"] >= _SLOW_CALLS
            assert event["rank"] not in slow
            slow.add(event["rank"])
        else:
            assert last.count(event["rank"]) == event["waited"] <= 2
            slow.remove(event["rank"])
            rests.add(event["rank"])


def test_waits_that_are_nothing_beside_the_step_are_not_told():
    calls = [(3, 0.05)] * 100
    assert add_steps(native.SlowRankDetector(), calls, step_s=60.0) == []


def test_a_wait_that_is_short_beside_the_call_is_not_told():
    monitor = native.SlowRankDetector()
    assert not any(monitor.add("g", i, 1, 0.1, 0.3) for i in range(100))


def test_a_rank_is_named_once_whatever_the_number_of_its_collectives():
    monitor = native.SlowRankDetector()
    steps = [(float(i), name) for i in range(30) for name in "abc"]
    events = [monitor.add(name, end, 1, 0.3, 0.31) for end, name in steps]
    assert len([event for event in events if event]) == 1


def test_recovery_is_seen_in_a_collective_that_is_called_after_the_first_one_ended():
    monitor = native.SlowRankDetector()
    (slow,) = add_steps(monitor, [(1, 0.2)] * 10, name="a")
    assert slow[1]["kind"] == "slow"
    assert add_steps(monitor, [(1, 0.2)] * 10, start=10, name="b") == []
    ((_, event),) = add_steps(monitor, [(0, 0.0)] * 40, start=20, name="b")
    assert (event["kind"], event["rank"]) == ("recovered", 1)


def test_a_rank_that_was_removed_has_not_recovered():
    monitor = native.SlowRankDetector()
    (slow,) = add_steps(monitor, [(3, 0.2)] * 15)
    assert slow[1]["kind"] == "slow"
    monitor.forget(3)
    assert add_steps(monitor, [(3, 0.2)] * 2 + [(0, 0.0)] * 40, start=15) == []


@pytest.mark.parametrize("behind", [0.001, 0.9 * _BEHIND_MIN_S])
def test_a_short_wait_is_not_told_although_it_is_most_of_the_time(behind):
    monitor = native.SlowRankDetector()
    events = [monitor.add("g", i * behind, 3, behind, 1.1 * behind) for i in range(100)]
    assert not any(events)
