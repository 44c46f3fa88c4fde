"""CollectiveTotals: durations in bins, bytes and late shares of the ended calls."""

import bisect
import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native


@hypothesis.given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_a_duration_is_counted_in_the_bin_that_contains_it(durations_ns):
    totals = native.CollectiveTotals()
    for duration in durations_ns:
        totals.add("c", duration)
    of_calls = totals.values()["c"]
    ends = [round(end * 1e9) for end in of_calls["durations_s"]]
    expected = [0] * (len(ends) + 1)
    for duration in durations_ns:
        expected[bisect.bisect_left(ends, duration)] += 1
    assert of_calls["calls"] == expected
    assert of_calls["elapsed_s"] == pytest.approx(sum(durations_ns) / 1e9)


def test_bins_are_narrow_from_131_microseconds_to_a_minute():
    totals = native.CollectiveTotals()
    totals.add("c", 0)
    ends = totals.values()["c"]["durations_s"]
    assert ends[0] == 131_072e-9
    assert 60 < ends[-1] < 70
    ratios = [after / before for before, after in itertools.pairwise(ends)]
    assert all(1.3 < ratio <= 1.5 for ratio in ratios)


def test_each_collective_has_its_own_totals():
    totals = native.CollectiveTotals()
    totals.add("a", 1_000_000, 100, 0.25)
    totals.add("b", 1_000_000, 10)
    totals.add("a", 3_000_000, 100, 0.5)
    values = totals.values()
    assert set(values) == {"a", "b"}
    assert values["a"]["bytes"] == 200
    assert values["a"]["missing_contributions"] == 0.75
    assert sum(values["a"]["calls"]) == 2
    assert (values["b"]["bytes"], values["b"]["missing_contributions"]) == (10, 0)


def test_too_many_collectives_are_counted_together():
    totals = native.CollectiveTotals()
    for i in range(native.OBSERVED_MAX + 3):
        totals.add(f"c {i}", 1000, 7)
    values = totals.values()
    assert len(values) == native.OBSERVED_MAX + 1
    assert values["(others)"]["bytes"] == 21
    totals.add("c 0", 1000, 7)
    assert totals.values()["c 0"]["bytes"] == 14
