"""The smoothed round-trip time of a path and its variation, in seconds."""

import hypothesis
import hypothesis.strategies as st
import pytest

import optireduce_testing as native


def test_the_first_round_trip_is_taken_as_it_is():
    estimator = native.RttEstimator()
    assert estimator.smoothed is None
    estimator.measure(0.08)
    assert estimator.smoothed == pytest.approx(0.08)
    # RFC 9002 5.3 and 6.2.1: the variation is half, the margin four times that.
    assert estimator.longest(0.001) == pytest.approx(0.08 + 4 * 0.04)


def test_later_round_trips_are_smoothed():
    estimator = native.RttEstimator()
    for sample in (0.08, 0.16):
        estimator.measure(sample)
    assert estimator.smoothed == pytest.approx(0.09)
    assert estimator.longest(0.001) == pytest.approx(0.09 + 4 * (0.75 * 0.04 + 0.02))


def test_the_margin_of_a_constant_round_trip_is_the_granularity():
    estimator = native.RttEstimator()
    for _ in range(200):
        estimator.measure(0.01)
    assert estimator.longest(0.001) == pytest.approx(0.011)


@hypothesis.given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=50))
def test_the_smoothed_round_trip_is_within_the_measured_ones(samples):
    estimator = native.RttEstimator()
    for sample in samples:
        estimator.measure(sample)
    assert min(samples) - 1e-6 <= estimator.smoothed <= max(samples) + 1e-6
    # Both are nanoseconds; their seconds are rounded.
    assert estimator.longest(0.001) >= estimator.smoothed + 0.001 - 1e-9
