"""The deadline with the most progress per second; times in seconds."""

import hypothesis
import hypothesis.strategies as st

import optireduce_testing as native

# Width of a bin of the histogram.
NEAR = 1.07


def histogram(latencies):
    """The distribution of some equal parts."""
    made = native.LatencyHistogram()
    for latency in latencies:
        made.add(latency)
    return made


def best(waits, *, late=(), computation, transfer=0.0, least=None, most=None):
    """The deadline for calls that need these times.

    Args:
      waits: the time of each call, at which all of its data arrives without `late`.
      late: arrivals of the data.
      computation: of a step.
      transfer: of the busiest source.
      least: lower bound; the shortest wait if None.
      most: upper bound; the longest wait if None.
    """
    return native.best_deadline(
        histogram(late or waits),
        histogram(waits),
        computation=computation,
        transfer=transfer,
        least=min(waits) if least is None else least,
        most=max(waits) if most is None else most,
    )


def test_a_rare_long_wait_is_cut_off():
    # One call in ten waits 0.5 s for one of ten parts of its data.
    calls = [0.02] * 9 + [0.5]
    data = [0.02] * 99 + [0.5]
    deadline = best(calls, late=data, computation=0.05)
    assert 0.02 <= deadline < 0.02 * NEAR


def test_calls_wait_if_what_is_late_is_worth_more_than_the_time():
    # One call in ten waits a little for all of its data.
    calls = [0.02] * 9 + [0.03]
    assert best(calls, computation=0.05) == 0.03


def test_no_time_is_won_where_the_link_is_full():
    calls = [0.02] * 9 + [0.5]
    data = [0.02] * 99 + [0.5]
    mean = sum(calls) / len(calls)
    assert best(calls, late=data, computation=0.05, transfer=mean) == 0.5


def test_a_link_that_is_partly_full_bounds_the_gain():
    calls = [0.02] * 9 + [0.5]
    data = [0.02] * 99 + [0.5]
    full = best(calls, late=data, computation=0.05, transfer=0.05)
    # The deadline at which the average wait is the transfer.
    assert 0.02 < full < 0.5


@hypothesis.given(
    st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=30),
    st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=30),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(1e-3, 1.0),
    st.floats(1e-3, 1.0),
)
def test_the_bounds_are_kept(calls, data, computation, transfer, one, other):
    least, most = sorted((one, other))
    deadline = best(
        calls,
        late=data,
        computation=computation,
        transfer=transfer,
        least=least,
        most=most,
    )
    assert least - 1e-9 <= deadline <= most + 1e-9


@hypothesis.given(
    st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=30),
    st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=30),
    st.floats(1e-3, 1),
)
def test_no_other_deadline_has_noticeably_more_progress(calls, data, computation):
    def progress(deadline):
        in_time = sum(at <= deadline * NEAR for at in data) / len(data)
        step = computation + sum(min(at, deadline) for at in calls) / len(calls)
        return in_time / step

    chosen = best(calls, late=data, computation=computation, least=1e-3, most=1.0)
    # Bins, and the least gain for which the deadline is shortened.
    noticeable = NEAR**2 * 1.05
    for other in {*calls, *data}:
        assert progress(other / NEAR**2) <= noticeable * progress(chosen)


def test_without_data_the_deadline_is_the_longer_one():
    nothing = native.LatencyHistogram()
    for data, calls in ((nothing, histogram([0.1])), (histogram([0.1]), nothing)):
        assert (
            native.best_deadline(
                data, calls, computation=0.1, transfer=0.0, least=0.01, most=0.5
            )
            == 0.5
        )
