"""LateShareDetector: collectives of which much data is late in call after call."""

import hypothesis
import hypothesis.strategies as st

import optireduce_testing as native

# The value in late_share.h.
CALLS = 50
HARMFUL, HARMLESS = 0.25, 0.1


def told(detector, count, *call, **stats):
    """Adds equal calls; returns the reports."""
    reports = [detector.add(*call, **stats) for _ in range(count)]
    return [report for report in reports if report is not None]


def test_a_collective_with_much_late_data_is_told_once():
    detector = native.LateShareDetector(skips=False)
    (report,) = told(detector, 10 * CALLS, "x", 0.4)
    assert report["kind"] == "late share"
    assert (report["collective"], report["calls"]) == ("x", CALLS)
    assert abs(report["late"] - 0.4) < 1e-9
    # Others have reports of their own.
    assert told(detector, CALLS, "y", 0.3)


def test_it_is_told_again_only_once_its_share_was_harmless():
    detector = native.LateShareDetector(skips=False)
    assert told(detector, CALLS, "x", 0.4)
    assert not told(detector, 10 * CALLS, "x", 0.2)
    assert not told(detector, 10 * CALLS, "x", 0.4)
    assert not told(detector, 10 * CALLS, "x", 0.0)
    assert told(detector, 10 * CALLS, "x", 0.4)


@hypothesis.given(st.lists(st.floats(0, 0.249), min_size=1, max_size=200))
def test_less_is_not_told(shares):
    detector = native.LateShareDetector(skips=False)
    assert not any(detector.add("x", share) for share in shares)


def test_a_short_phase_is_not_told():
    detector = native.LateShareDetector(skips=False)
    assert not told(detector, CALLS - 1, "x", 1.0)
    detector = native.LateShareDetector(skips=False)
    assert not told(detector, 200, "x", 0.05)
    assert not told(detector, 10, "x", 1.0)


def test_late_results_count_too():
    detector = native.LateShareDetector(skips=False)
    (report,) = told(detector, CALLS, "x", 0.2, 0.5)
    assert abs(report["late"] - (0.5 + 0.5 * 0.2)) < 1e-9


def test_absent_ranks_that_skip_calls_are_not_late():
    assert not told(
        native.LateShareDetector(skips=True), 10 * CALLS, "x", 0.25, absent=1
    )
    assert told(native.LateShareDetector(skips=False), CALLS, "x", 0.25, absent=1)


def test_calls_that_wait_are_no_evidence():
    detector = native.LateShareDetector(skips=False)
    assert not told(detector, 10 * CALLS, "x", 1.0, deadline=0.0)
    # All others had ended this call before the rank made it.
    assert told(detector, CALLS, "y", 0.0, 1.0, deadline=0.0, passed=True)
