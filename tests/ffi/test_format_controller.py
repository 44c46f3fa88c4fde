"""The wire format of calls with `wire_format="auto"`, one call after another."""

import itertools

import hypothesis
import hypothesis.strategies as st

import optireduce_testing as native

# Calls after which a lasting change has its effect.
SETTLED = 60


class Calls:
    """Calls at equal intervals, in virtual time."""

    def __init__(self):
        self.controller = native.FormatController()
        self.now = 0.0

    def make(self, count: int, *, period_s: float, wire_s: float, size: int = 1000):
        """Makes calls; returns their formats."""
        formats = []
        for _ in range(count):
            formats.append(self.controller.choose(self.now, wire_s, size))
            self.now += period_s
        return formats


def test_calls_are_not_rounded_while_no_rate_limits_them():
    assert set(Calls().make(SETTLED, period_s=0.1, wire_s=0.0)) == {"float32"}


@hypothesis.given(period_s=st.floats(1e-3, 10), share=st.floats(0.03, 3))
def test_calls_are_rounded_while_the_network_takes_a_noticeable_part(period_s, share):
    formats = Calls().make(SETTLED, period_s=period_s, wire_s=share * period_s)
    # The period is known with the second call, and some calls confirm the first sign.
    assert formats[0] == "float32"
    assert set(formats[10:]) == {"int8"}


@hypothesis.given(period_s=st.floats(1e-3, 10), share=st.floats(0.0, 0.02))
def test_calls_are_not_rounded_for_a_small_part_of_the_time(period_s, share):
    formats = Calls().make(SETTLED, period_s=period_s, wire_s=share * period_s)
    assert set(formats) == {"float32"}


def test_calls_are_not_rounded_where_rounding_takes_as_long_as_it_saves():
    bucket = 25_000_000
    fast = bucket / 10e9
    formats = Calls().make(SETTLED, period_s=2 * fast, wire_s=fast, size=bucket)
    assert set(formats) == {"float32"}
    slow = bucket / 0.5e9
    formats = Calls().make(SETTLED, period_s=2 * slow, wire_s=slow, size=bucket)
    assert formats[-1] == "int8"


@hypothesis.given(before=st.sampled_from([0.0, 0.5]), count=st.integers(1, 4))
def test_a_few_odd_calls_do_not_change_the_format(before, count):
    calls = Calls()
    usual = calls.make(SETTLED, period_s=0.1, wire_s=before * 0.1)[-1]
    calls.make(count, period_s=0.1, wire_s=(0.5 - before) * 0.1)
    assert calls.controller.format == usual
    assert set(calls.make(SETTLED, period_s=0.1, wire_s=before * 0.1)) == {usual}


@hypothesis.given(st.lists(st.integers(1, 7), max_size=20))
@hypothesis.example([5, 1])
@hypothesis.example([1, 4, 1, 4])
def test_the_format_changes_with_the_fifth_call_in_a_row_that_speaks_for_it(runs):
    calls = Calls()
    usual, contrary = "float32", 0
    calls.make(1, period_s=0.1, wire_s=0.0)
    for i, length in enumerate(runs):
        better = ("int8", "float32")[i % 2]
        for _ in range(length):
            contrary = contrary + 1 if better != usual else 0
            if contrary == 5:
                usual, contrary = better, 0
            wire_s = 0.05 if better == "int8" else 0.0
            assert calls.make(1, period_s=0.1, wire_s=wire_s) == [usual]


def test_the_format_follows_a_lasting_change_within_twenty_calls():
    calls = Calls()
    for share, expected in ((0.0, "float32"), (0.5, "int8"), (0.001, "float32")):
        formats = calls.make(SETTLED, period_s=0.1, wire_s=share * 0.1)
        assert set(formats[20:]) == {expected}


@hypothesis.given(st.lists(st.floats(0.011, 0.021), min_size=50, max_size=100))
def test_a_part_between_both_thresholds_changes_the_format_at_most_once(shares):
    calls = Calls()
    formats = [calls.make(1, period_s=0.1, wire_s=share * 0.1)[0] for share in shares]
    assert sum(a != b for a, b in itertools.pairwise(formats)) <= 1
