"""The share of the data by arrival time; times in seconds."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

# The value in latency_histogram.h: 16 bins for every doubling.
BIN = 1 / 16
FINEST_S, LONGEST_S = 2**14 / 1e9, 2**36 / 1e9

latencies = st.lists(st.floats(2 * FINEST_S, LONGEST_S / 2), min_size=1, max_size=50)


def made(times):
    histogram = native.LatencyHistogram()
    for time in times:
        histogram.add(time)
    return histogram


def test_of_nothing_every_time_is_zero():
    histogram = native.LatencyHistogram()
    assert histogram.total == 0
    assert histogram.exceeded_by(0.5) == 0


@hypothesis.given(latencies, st.floats(0.01, 1))
def test_less_than_the_share_exceeds_the_time(times, share):
    time = made(times).exceeded_by(share)
    assert sum(each > time for each in times) < share * len(times) + 1e-6
    # It is no longer than needed, to the width of a bin.
    shorter = time / (1 + 2 * BIN)
    assert sum(each > shorter for each in times) >= share * len(times) - 1e-6


@pytest.mark.parametrize(("time", "bin_s"), [(0.0, FINEST_S), (1e6, LONGEST_S)])
def test_times_beyond_either_end_are_in_the_last_bin(time, bin_s):
    assert made([time]).exceeded_by(0.5) == pytest.approx(bin_s, rel=2 * BIN)


@hypothesis.given(latencies, latencies)
def test_two_histograms_add_up(first, second):
    both = made(first)
    both.add_all(made(second))
    assert both.total == pytest.approx(len(first) + len(second))
    assert both.exceeded_by(0.3) == made(first + second).exceeded_by(0.3)


def test_faded_weights_count_less_than_new_ones():
    histogram = native.LatencyHistogram()
    histogram.add(1.0, weight=10.0)
    histogram.fade(0.05)
    histogram.add(0.1, weight=1.0)
    assert histogram.total == pytest.approx(1.5)
    assert histogram.exceeded_by(0.5) == pytest.approx(0.1, rel=2 * BIN)
    assert histogram.exceeded_by(0.3) == pytest.approx(1.0, rel=2 * BIN)


def test_weights_that_have_faded_away_are_gone():
    histogram = made([0.1])
    for _ in range(3):
        histogram.fade(0.001)
    assert histogram.total == 0
    assert histogram.exceeded_by(0.5) == 0


def test_forgotten_times_are_those_beyond():
    histogram = made([0.01, 0.1, 1.0, 10.0])
    assert histogram.weight_beyond(0.1) == 2
    histogram.forget_beyond(0.1)
    assert histogram.total == 2
    assert histogram.weight_beyond(0.1) == 0
    assert histogram.exceeded_by(0.1) == pytest.approx(0.1, rel=2 * BIN)
