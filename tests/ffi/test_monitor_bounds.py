"""Thresholds of the call monitor: events that are too early or small to report.

Times are in seconds.
"""

import time

import pytest

import optireduce_testing as native

# Source: kBehindMin of ffi/runtime/slow_rank.cc.
_BEHIND_MIN_S = 0.02
# Source: kMissedLate of ffi/runtime/short_deadline.h.
_MISSED_LATE = 0.05
# Source: kNewsMax of ffi/runtime/call_monitor.cc.
_NEWS_MAX = 64


def test_a_stall_is_not_told_before_its_time_however_late_somebody_asks():
    stall_timeout = 0.2
    watch = native.CallMonitor(stall_timeout, 1.0)
    watch.begin("a", 1)
    time.sleep(0.7 * stall_timeout)
    news = watch.wait()
    assert news["kind"] == "stall"
    assert news["call"]["elapsed_s"] >= stall_timeout


def test_events_that_nobody_takes_have_a_bound():
    ranks = 2 * _NEWS_MAX
    watch = native.CallMonitor(0.0, 1.0, world_size=ranks)
    for gone in range(ranks):
        watch.set_live(list(range(gone + 1, ranks)))
    watch.close()
    told = 0
    while (news := watch.wait()) is not None:
        assert news["ranks"] == [told]
        told += 1
    assert told == _NEWS_MAX


@pytest.mark.parametrize("behind", [0.001, 0.9 * _BEHIND_MIN_S])
def test_a_short_wait_is_not_told_although_it_is_most_of_the_time(behind):
    watch = native.SlowRankDetector()
    news = [watch.add("g", i * behind, 3, behind, 1.1 * behind) for i in range(100)]
    assert not any(news)


def test_a_deadline_that_misses_hardly_anything_is_not_told():
    watch = native.ShortDeadlineDetector(1.0)
    assert not any(watch.add("g", 2.0, 0.9 * _MISSED_LATE) for _ in range(100))
    assert any(watch.add("g", 2.0, 1.1 * _MISSED_LATE) for _ in range(100))


def test_ranks_whose_beginnings_differ_by_less_than_four_times_are_waited_for():
    controller = native.DeadlineController(
        late_budget=0.01,
        bound_s=60.0,
        latency_s=0.002,
        sources=5,
        waits_for_stragglers=False,
    )
    begins = [0.0, 0.01, 0.01, 0.01, 0.02]
    for _ in range(60):
        controller.begin_call()
        for source, begin in enumerate(begins):
            controller.began(source, begin)
            if source > 0:
                controller.arrived(source, begin + 0.001, 0.001, 1.0)
    assert controller.deadline() >= 0.021
