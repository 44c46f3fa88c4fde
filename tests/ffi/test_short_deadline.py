"""ShortDeadlineDetector: deadlines that cut most of the data off.

Times are in seconds; the class reads no clock.
"""

import statistics

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

# The value in short_deadline.h.
_CUT_CALLS = 10
_MISSED_LATE = 0.05
_SUGGESTED_ROOM = 2


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
    late = []  # late data of the consecutive calls that were cut
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


def test_a_deadline_that_misses_hardly_anything_is_not_told():
    monitor = native.ShortDeadlineDetector(1.0)
    assert not any(monitor.add("g", 2.0, 0.9 * _MISSED_LATE) for _ in range(100))
    assert any(monitor.add("g", 2.0, 1.1 * _MISSED_LATE) for _ in range(100))
