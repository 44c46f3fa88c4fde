"""The call monitor: arrivals, slow ranks, short deadlines, the flight record.

Times are in seconds. The classes read no clock: tests pass every time, except to the
call monitor, whose events they wait for.
"""

import itertools
import statistics
import threading

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

_UNAVAILABLE = 14
_CANCELLED = 1

# Of slow_rank.h.
_WINDOW = 10
_SLOW_CALLS = 8
_BEHIND_MIN_S = 0.02
_PAUSE_S = 60.0

# Of short_deadline.h.
_CUT_CALLS = 10
_MISSED_LATE = 0.05
_SUGGESTED_ROOM = 2

# A step of training, and the duration of a call without a wait.
_STEP_S = 0.5
_CALL_S = 0.01


# ---- The rank that a call waited for.


def test_the_one_that_came_last_is_behind_the_others():
    arrivals = native.Arrivals(0, 4)
    for at, member in [(1.0, 1), (1.1, 2), (1.3, 3), (1.5, 3)]:
        arrivals.note(at, member)
    member, behind, absent = arrivals.find_latest(0.5, 2.0)
    assert (member, behind, absent) == (3, pytest.approx(0.4), False)


def test_nobody_is_behind_a_program_that_came_last_itself():
    arrivals = native.Arrivals(0, 4)
    for at, member in [(1.0, 1), (1.1, 2), (1.5, 3)]:
        arrivals.note(at, member)
    assert arrivals.find_latest(1.6, 2.0)[1] == 0


def test_a_member_of_which_nothing_came_is_behind_until_the_end():
    arrivals = native.Arrivals(1, 3)
    arrivals.note(1.0, 0)
    assert arrivals.find_latest(0.9, 3.0) == (2, pytest.approx(2.0), True)


def test_with_one_peer_the_time_of_a_large_bucket_is_not_its_lateness():
    arrivals = native.Arrivals(0, 2)
    for i in range(100):
        arrivals.note(1.0 + i / 100, 1)
    assert arrivals.find_latest(1.0, 2.0)[1] == 0
    assert arrivals.find_latest(0.75, 2.0)[1] == pytest.approx(0.25)


@hypothesis.given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=7), st.integers(0, 1000)
)
def test_behind_is_the_wait_after_the_middle_one_of_the_others(times, submitted):
    arrivals = native.Arrivals(0, len(times) + 1)
    for member, at in enumerate(times, 1):
        arrivals.note(at, member)
    member, behind, absent = arrivals.find_latest(submitted, 2000)
    ready = submitted
    if len(times) > 1:
        ready = max(submitted, statistics.median_low(times))
    assert times[member - 1] == max(times)
    assert behind == max(0, max(times) - ready)
    assert not absent


# ---- The slow rank.


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
    phases = [(3, 0.2)] * 20 + [(1, 0.0)] * 20 + [(3, 0.2)] * 2 * pause
    events = add_steps(monitor, phases)
    assert [event["kind"] for _, event in events] == ["slow", "recovered", "slow"]
    assert [event["rank"] for _, event in events] == [3, 3, 3]
    assert events[1][0] < 30
    assert events[1][0] + pause <= events[2][0] < 50 + pause


def test_a_rank_at_the_edge_is_told_ever_less_often():
    monitor = native.SlowRankDetector()
    phases = ([(3, 0.2)] * 20 + [(1, 0.0)] * 20) * 60
    events = add_steps(monitor, phases)
    # 20 minutes, in which the rank crosses both thresholds 60 times.
    assert len(phases) * _STEP_S == 20 * 60
    assert 4 <= len(events) <= 10
    slow = [call for call, event in events if event["kind"] == "slow"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(slow)]
    assert pauses == sorted(pauses)
    # Much later, slowness is a new event.
    late = add_steps(monitor, [(1, 0.0)] * 20, start=40_000)
    late += add_steps(monitor, [(3, 0.2)] * 20, start=40_020)
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
    ((_, event),) = add_steps(monitor, [(0, 0.0)] * 20, start=20, name="b")
    assert (event["kind"], event["rank"]) == ("recovered", 1)


def test_a_rank_that_was_removed_has_not_recovered():
    monitor = native.SlowRankDetector()
    (slow,) = add_steps(monitor, [(3, 0.2)] * 15)
    assert slow[1]["kind"] == "slow"
    monitor.forget(3)
    assert add_steps(monitor, [(3, 0.2)] * 2 + [(0, 0.0)] * 20, start=15) == []


# ---- Deadlines that are too short.


def add_cut(monitor, needed, late=0.7, name="grads", calls=_CUT_CALLS):
    """Adds equal calls; returns the reports."""
    events = [monitor.add(name, needed, late) for _ in range(calls)]
    return [event for event in events if event]


def test_a_deadline_that_cuts_most_data_is_told_once_with_a_longer_one():
    monitor = native.ShortDeadlineDetector(1.0)
    assert add_cut(monitor, 2.6, calls=_CUT_CALLS - 1) == []
    (event,) = add_cut(monitor, 2.6, calls=100)
    assert event == {
        "kind": "short deadline",
        "collective": "grads",
        "calls": _CUT_CALLS,
        "late": pytest.approx(0.7),
        "needed_s": 2.6,
        "suggested_s": 5.2,
    }


def test_a_deadline_is_told_again_when_the_longer_one_would_be_too_short():
    monitor = native.ShortDeadlineDetector(1.0)
    assert len(add_cut(monitor, 2.0)) == 1
    assert add_cut(monitor, 0.5, calls=50) == []
    assert add_cut(monitor, 4.0, calls=50) == []
    (event,) = add_cut(monitor, 4.1, calls=50)
    assert event["suggested_s"] == pytest.approx(8.2)


def test_a_deadline_is_told_once_whatever_the_number_of_collectives():
    monitor = native.ShortDeadlineDetector(1.0)
    names = [f"bucket {i}" for i in range(40)] * 20
    events = [monitor.add(name, 1.5, 0.7) for name in names]
    assert [event["collective"] for event in events if event] == ["bucket 0"]


@hypothesis.given(
    st.lists(
        # Whole milliseconds, which never coincide with half ones.
        st.tuples(
            st.integers(0, 30_000).map(lambda ms: ms / 1e3),
            st.floats(0, 1),
            st.floats(0, 1),
        ),
        max_size=60,
    ),
    st.integers(0, 9_999).map(lambda ms: (ms + 0.5) / 1e3),
)
def test_only_what_is_cut_and_late_in_a_row_is_told(calls, bound):
    monitor = native.ShortDeadlineDetector(bound)
    late = []  # of the consecutive calls that were cut
    for needed, contributions, results in calls:
        event = monitor.add("grads", needed, contributions, results)
        if needed > bound:
            late.append(1 - (1 - contributions) * (1 - results))
        elif needed > 0:
            late = []
        if event is None:
            # A mean at the threshold may be rounded to either side.
            edge = 1.001 * _MISSED_LATE
            assert len(late) != _CUT_CALLS or statistics.fmean(late) < edge
            continue
        assert len(late) >= _CUT_CALLS
        assert 0.999 * _MISSED_LATE <= event["late"] <= max(late) + 1e-9
        assert event["suggested_s"] == pytest.approx(_SUGGESTED_ROOM * needed)
        bound, late = event["suggested_s"], []


def test_calls_that_have_not_learned_yet_tell_nothing():
    monitor = native.ShortDeadlineDetector(1.0)
    assert add_cut(monitor, 0.0, calls=100) == []
    # Nor do they interrupt a series of calls that have.
    events = [monitor.add("grads", i % 2 * 2.0, 0.7) for i in range(2 * _CUT_CALLS)]
    assert len([event for event in events if event]) == 1


# ---- The flight record.


@hypothesis.given(st.integers(1, 20), st.lists(st.booleans(), max_size=60))
def test_the_record_holds_the_newest_calls_and_those_under_way(capacity, ends):
    recorder = native.FlightRecorder(capacity)
    states = {}
    for i, end in enumerate(ends):
        number = recorder.begin("c", i, float(i))
        states[number] = "under way"
        if end:
            assert recorder.end(number, i + 0.5, 0, "")
            states[number] = "done"
    kept = dict(list(states.items())[-capacity:])
    records = recorder.records()
    assert {r["number"]: r["state"] for r in records} == kept
    assert [r["number"] for r in records] == sorted(kept)
    under_way = [n for n, state in kept.items() if state == "under way"]
    assert recorder.under_way() == len(under_way)
    assert recorder.oldest_untold() == min(under_way, default=None)
    recorder.tell_all()
    assert recorder.oldest_untold() is None


def test_a_call_that_was_overwritten_ends_without_a_trace():
    recorder = native.FlightRecorder(2)
    first = recorder.begin("c", 0, 0.0)
    for i in (1, 2):
        recorder.begin("c", i, float(i))
    assert not recorder.end(first, 3.0, 0, "")
    assert [r["sequence"] for r in recorder.records()] == [1, 2]


def test_a_record_says_what_when_and_how_it_ended():
    recorder = native.FlightRecorder()
    number = recorder.begin("grads", 7, 2.0)
    assert recorder.end(number, 2.5, _UNAVAILABLE, "rank 1 is gone " + "x" * 1000)
    (record,) = recorder.records()
    assert record["collective"] == "grads"
    assert record["description"] == "grads f32"
    assert (record["sequence"], record["bytes"]) == (7, 400)
    assert record["started_monotonic_s"] == 2.0
    assert record["started_unix_s"] == 1e9 + 2.0
    assert (record["state"], record["elapsed_s"]) == ("failed", 0.5)
    assert record["error"].startswith("rank 1 is gone")
    assert len(record["error"]) == 400
    assert record["slowest_process"] == -1


# ---- The call monitor.


def test_a_stall_is_told_once_with_all_calls_under_way():
    monitor = native.CallMonitor(0.05, 1.0)
    monitor.begin("a", 1)
    monitor.begin("b", 1)
    events = monitor.wait()
    assert events["kind"] == "stall"
    assert (events["call"]["collective"], events["others"]) == ("a", 1)
    assert events["call"]["state"] == "under way"
    assert events["call"]["elapsed_s"] >= 0.05
    late = monitor.begin("c", 1)
    events = monitor.wait()
    assert (events["call"]["collective"], events["others"]) == ("c", 2)
    monitor.end(late, 0, "")
    monitor.close()
    assert monitor.wait() is None


def test_a_call_that_ends_in_time_is_not_told():
    monitor = native.CallMonitor(1000.0, 0.0)
    for i in range(10):
        monitor.end(monitor.begin("a", i), 0, "")
    monitor.close()
    assert monitor.wait() is None


def test_the_failure_of_a_peer_that_is_gone_is_told_once_until_a_call_ends_well():
    monitor = native.CallMonitor(1000.0, 0.0)
    calls = [monitor.begin("a", i) for i in range(3)]
    for call in calls:
        monitor.end(call, _UNAVAILABLE, "rank 2 has been silent")
    monitor.end(monitor.begin("a", 3), _UNAVAILABLE, "rank 2 has been silent")
    monitor.end(monitor.begin("a", 4), 0, "")
    monitor.end(monitor.begin("a", 5), _UNAVAILABLE, "rank 1 has been silent")
    monitor.end(monitor.begin("a", 6), _CANCELLED, "closed")
    monitor.close()
    first, second = monitor.wait(), monitor.wait()
    assert "rank 2" in first["call"]["error"]
    assert "rank 1" in second["call"]["error"]
    assert monitor.wait() is None


@pytest.mark.parametrize("stall_timeout", [0.0, 1000.0])
def test_a_failure_without_a_wait_and_a_timeout_of_zero_tell_nothing(stall_timeout):
    monitor = native.CallMonitor(stall_timeout, 1000.0 if stall_timeout else 0.0)
    monitor.end(monitor.begin("a", 0), _UNAVAILABLE, "rank 2 has left")
    monitor.close()
    assert monitor.wait() is None


def test_a_removed_rank_is_told_once_whichever_lane_knows_it():
    monitor = native.CallMonitor(0.0, 1.0, world_size=4)
    assert monitor.live() == 4
    # Two lanes, each with reports of its own.
    for live in ([0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 3], [1, 2, 3]):
        monitor.set_live(live)
    assert monitor.live() == 2
    monitor.close()
    events = [monitor.wait(), monitor.wait()]
    assert events == [
        {"kind": "removed", "ranks": [2], "live": 3},
        {"kind": "removed", "ranks": [0], "live": 2},
    ]
    assert monitor.wait() is None


def test_events_that_are_not_read_are_bounded():
    ranks = 1000
    monitor = native.CallMonitor(0.0, 1.0, world_size=ranks)
    for first in range(1, ranks):
        monitor.set_live(list(range(first, ranks)))
    monitor.close()
    events = list(iter(monitor.wait, None))
    assert [event["ranks"] for event in events] == [[i] for i in range(len(events))]
    assert len(events) < ranks / 2


def test_closing_wakes_the_thread_that_waits():
    monitor = native.CallMonitor(1000.0, 1.0)
    results = []
    thread = threading.Thread(target=lambda: results.append(monitor.wait()))
    thread.start()
    monitor.begin("a", 0)
    monitor.close()
    thread.join(30.0)
    assert results == [None]
