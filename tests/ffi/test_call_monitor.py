"""CallMonitor: stalls, failures and removals, each told once.

Times are in seconds. The monitor reads the clock; the tests wait for its events.
"""

import threading
import time

import pytest

import optireduce_testing as native

_UNAVAILABLE = 14
_CANCELLED = 1

# Source: kEventsMax of ffi/runtime/call_monitor.cc.
_EVENTS_MAX = 64


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


@pytest.mark.parametrize("pairs", [False, True])
def test_late_gradients_are_told_and_late_values_are_not(pairs):
    monitor = native.CallMonitor(1000.0, 0.0)
    for i in range(100):
        call = monitor.begin("a", i, defers=True, pairs=pairs)
        monitor.end(call, 0, "", late=0.5)
    monitor.close()
    told = monitor.wait()
    assert (told is None) if pairs else (told["kind"] == "late share")


@pytest.mark.parametrize("spare", [0, 1])
def test_a_rank_that_calls_may_spare_is_not_slow(spare):
    monitor = native.CallMonitor(0.0, 1.0)
    for i in range(20):
        monitor.end(monitor.begin("coded", i, spare=spare), 0, "", absent=[2])
    monitor.close()
    event = monitor.wait()
    assert (event and event["kind"]) == (None if spare else "slow")


def test_a_removed_rank_is_told_once_whichever_lane_knows_it():
    monitor = native.CallMonitor(0.0, 1.0, world_size=4)
    assert monitor.live() == 4
    # Two lanes, each with reports of its own.
    for live in ([0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 3], [1, 2, 3]):
        monitor.set_live(live, "" if 0 in live else "a path is narrow")
    assert monitor.live() == 2
    monitor.close()
    events = [monitor.wait(), monitor.wait()]
    assert events == [
        {"kind": "removed", "ranks": [2], "live": 3, "path": ""},
        {"kind": "removed", "ranks": [0], "live": 2, "path": "a path is narrow"},
    ]
    assert monitor.wait() is None


def test_closing_wakes_the_thread_that_waits():
    monitor = native.CallMonitor(1000.0, 1.0)
    results = []
    thread = threading.Thread(target=lambda: results.append(monitor.wait()))
    thread.start()
    monitor.begin("a", 0)
    monitor.close()
    thread.join(30.0)
    assert results == [None]


def test_a_stall_is_not_told_before_its_time_however_late_the_question():
    stall_timeout = 0.2
    monitor = native.CallMonitor(stall_timeout, 1.0)
    monitor.begin("a", 1)
    time.sleep(0.7 * stall_timeout)
    event = monitor.wait()
    assert event["kind"] == "stall"
    assert event["call"]["elapsed_s"] >= stall_timeout


def test_unread_events_have_a_bound():
    ranks = 2 * _EVENTS_MAX
    monitor = native.CallMonitor(0.0, 1.0, world_size=ranks)
    for gone in range(ranks):
        monitor.set_live(list(range(gone + 1, ranks)))
    monitor.close()
    told = 0
    while (event := monitor.wait()) is not None:
        assert event["ranks"] == [told]
        told += 1
    assert told == _EVENTS_MAX
    assert monitor.events_dropped == ranks - _EVENTS_MAX
