"""The early end of stages that drop late data; times in seconds."""

import statistics

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

COMPLETE = native.StageExit.COMPLETE
EXPIRED = native.StageExit.EXPIRED
EARLY = native.StageExit.EARLY

BOUND_S = 2.0
TOTAL = 100_000  # bytes of a stage

# Whole milliseconds, exact in the nanoseconds of the implementation.
times = st.integers(1, 1999).map(lambda milliseconds: milliseconds / 1000)


def make_early_exit(members: int = 1, own: int = 0):
    return native.EarlyExit(BOUND_S, members, own)


def calibrate(early_exit, elapsed: float = 1.0):
    for _ in range(20):
        early_exit.end_stage(COMPLETE, elapsed, TOTAL, TOTAL)
    assert early_exit.calibrated()
    return early_exit


@hypothesis.given(st.lists(times, min_size=20, max_size=20))
def test_the_hard_bound_is_the_p95_of_the_first_twenty(elapsed):
    early_exit = make_early_exit()
    for one in elapsed:
        assert not early_exit.calibrated()
        assert early_exit.hard_bound() == BOUND_S
        assert early_exit.grace() == BOUND_S
        early_exit.end_stage(COMPLETE, one, TOTAL, TOTAL)
    assert early_exit.calibrated()
    assert early_exit.hard_bound() == sorted(elapsed)[18]
    early_exit.end_stage(COMPLETE, 1.999, TOTAL, TOTAL)
    assert early_exit.hard_bound() == sorted(elapsed)[18]


@hypothesis.given(
    st.lists(times, min_size=18, max_size=18),
    st.lists(
        st.tuples(st.sampled_from([EXPIRED, EARLY]), st.integers(0, TOTAL - 1)),
        min_size=2,
        max_size=2,
    ),
)
def test_calls_that_were_cut_do_not_make_the_hard_bound_short(elapsed, cut):
    early_exit = make_early_exit()
    for exit_, received in cut:
        early_exit.end_stage(exit_, 0.001, received, TOTAL)
    for one in elapsed:
        early_exit.end_stage(COMPLETE, one, TOTAL, TOTAL)
    assert early_exit.hard_bound() == BOUND_S


def test_nothing_exceeds_the_users_bound():
    early_exit = make_early_exit()
    for _ in range(20):
        early_exit.end_stage(COMPLETE, 10 * BOUND_S, TOTAL, TOTAL)
    assert early_exit.hard_bound() == BOUND_S
    assert early_exit.early_bound() == BOUND_S


def test_recalibration_measures_the_hard_bound_again():
    early_exit = calibrate(make_early_exit(), 0.5)
    for _ in range(3):
        early_exit.end_stage(EXPIRED, 0.5, TOTAL // 2, TOTAL)
    assert not early_exit.calibrated()
    assert early_exit.hard_bound() == early_exit.grace() == BOUND_S
    calibrate(early_exit, 0.25)
    assert early_exit.hard_bound() == 0.25


@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from([COMPLETE, EXPIRED, EARLY]), st.integers(0, 20), st.just(20)
        ),
        max_size=60,
    )
)
def test_three_of_twenty_calls_cut_short_measure_it_again(history):
    early_exit = calibrate(make_early_exit(), 0.5)
    cuts = []
    for exit_, some, total in history:
        received = total if exit_ == COMPLETE else some
        early_exit.end_stage(exit_, 0.5, received, total)
        # The stage ended at the hard bound, with more than 10 % missing.
        cuts.append(exit_ == EXPIRED and received < 18)
        again = sum(cuts[-20:]) == 3
        assert early_exit.calibrated() == (not again)
        if again:
            calibrate(early_exit, 0.5)
            cuts.clear()


class TestSample:
    """A rank reports the whole duration of each call to the others."""

    def test_on_time_it_is_the_time(self):
        early_exit = calibrate(make_early_exit())
        assert early_exit.end_stage(COMPLETE, 0.5, TOTAL, TOTAL) == 0.5

    def test_after_the_hard_bound_it_is_the_bound(self):
        early_exit = calibrate(make_early_exit())
        assert early_exit.end_stage(EXPIRED, 0.9, 10, TOTAL) == 1.0

    @hypothesis.given(times, st.integers(0, TOTAL))
    def test_after_an_early_exit_it_is_extrapolated(self, elapsed, received):
        # The public code divides integers, so its ratio is 0 or 1.
        early_exit = calibrate(make_early_exit())
        sample = early_exit.end_stage(EARLY, elapsed, received, TOTAL)
        expected = min(elapsed * TOTAL / received, 1.0) if received else 1.0
        assert sample == pytest.approx(expected, abs=2e-9)

    def test_the_wait_after_the_last_data_does_not_count(self):
        early_exit = calibrate(make_early_exit())
        sample = early_exit.end_stage(EARLY, 0.6, TOTAL // 2, TOTAL, idle=0.2)
        assert sample == pytest.approx(0.8, abs=2e-9)

    @pytest.mark.parametrize("exit_", [COMPLETE, EARLY])
    def test_of_a_stage_without_data_it_is_the_time(self, exit_):
        early_exit = calibrate(make_early_exit())
        assert early_exit.end_stage(exit_, 0.25, 0, 0) == 0.25


class TestEarlyBound:
    """t_C: the median of the members' latest samples, averaged over the calls."""

    @hypothesis.given(st.lists(st.none() | times, min_size=0, max_size=15), times)
    def test_is_the_median_of_the_members_that_are_known(self, told, own):
        # A member without a sample counts as 0 in the public code.
        early_exit = make_early_exit(len(told) + 1, own=len(told))
        for member, sample in enumerate(told):
            early_exit.told(member, sample)
        early_exit.end_stage(COMPLETE, own, TOTAL, TOTAL)
        known = [sample for sample in told if sample is not None]
        median = statistics.median([*known, own])
        assert early_exit.early_bound() == pytest.approx(median, abs=2e-9)

    @hypothesis.given(st.permutations([0.1, 0.2, 0.3, 0.4]), st.integers(0, 3), times)
    def test_the_median_leaves_every_members_sample_in_place(self, told, one, new):
        # The public code sorts the samples themselves, and so confuses the members.
        early_exit = make_early_exit(5, own=4)
        told = list(told)
        for member, sample in enumerate(told):
            early_exit.told(member, sample)
        early_exit.end_stage(COMPLETE, 0.25, TOTAL, TOTAL)
        before = early_exit.early_bound()
        told[one] = new
        early_exit.told(one, new)
        early_exit.end_stage(COMPLETE, 0.25, TOTAL, TOTAL)
        median = statistics.median([*told, 0.25])
        expected = 0.95 * before + 0.05 * median
        assert early_exit.early_bound() == pytest.approx(expected, abs=1e-8)

    def test_silence_keeps_the_latest_sample(self):
        early_exit = make_early_exit(3)
        early_exit.told(1, 0.5)
        early_exit.told(2, 0.5)
        early_exit.told(1, None)
        early_exit.end_stage(COMPLETE, 0.1, TOTAL, TOTAL)
        assert early_exit.early_bound() == 0.5

    @hypothesis.given(
        st.lists(
            st.tuples(
                st.sampled_from([COMPLETE, EXPIRED, EARLY]),
                st.floats(0, 1e6),
                st.integers(0, TOTAL),
                st.floats(0, 1e9),
            ),
            max_size=60,
        )
    )
    def test_never_exceeds_the_hard_bound(self, calls):
        early_exit = make_early_exit(2)
        for exit_, elapsed, received, told in calls:
            early_exit.told(1, told)
            came = TOTAL if exit_ == COMPLETE else received
            assert 0 <= early_exit.end_stage(exit_, elapsed, came, TOTAL) <= BOUND_S
            assert 0 <= early_exit.early_bound() <= early_exit.hard_bound() <= BOUND_S
            assert 0 <= early_exit.grace() <= early_exit.hard_bound()


class TestGrace:
    """x: the part of t_C to wait after the last segments."""

    def percent(self, early_exit, late: int, calls: int = 1, lost: int = 0) -> int:
        for _ in range(calls):
            early_exit.came_late(late)
            early_exit.end_stage(EARLY, 0.5, TOTAL - lost, TOTAL)
        return round(100 * early_exit.grace_fraction())

    def test_doubles_with_late_data_and_shrinks_by_points_without(self):
        early_exit = make_early_exit()
        assert early_exit.grace_fraction() == 0.1
        assert [self.percent(early_exit, 101) for _ in range(4)] == [20, 40, 50, 50]
        assert [self.percent(early_exit, 9) for _ in range(3)] == [49, 48, 47]
        assert self.percent(early_exit, 0, calls=60) == 1
        assert self.percent(early_exit, 101) == 2

    def test_stays_with_a_little_late_data(self):
        early_exit = make_early_exit()
        assert self.percent(early_exit, 50, calls=5) == 10

    def test_data_that_the_network_loses_is_not_waited_for(self):
        early_exit = make_early_exit()
        assert self.percent(early_exit, 0, calls=60, lost=TOTAL // 20) == 1

    def test_is_a_part_of_the_early_bound(self):
        early_exit = calibrate(make_early_exit())
        early_exit.came_late(101)
        early_exit.end_stage(EARLY, 0.5, TOTAL, TOTAL)
        assert early_exit.grace_fraction() == 0.02
        expected = 0.02 * early_exit.early_bound()
        assert early_exit.grace() == pytest.approx(expected, abs=2e-9)
        assert early_exit.grace() > 0


class TestDurationCode:
    """A duration in 16 bits."""

    durations = st.integers(0, 62).flatmap(
        lambda bits: st.integers(1, (2 << bits) - 1).filter(lambda ns: ns < 2**63)
    )

    @hypothesis.given(durations)
    def test_the_error_is_below_a_thousandth(self, ns):
        decoded = native.decode_duration(native.encode_duration(ns))
        assert 0 <= ns - decoded <= ns / 1000

    @hypothesis.given(durations, durations)
    def test_a_longer_one_never_has_a_smaller_code(self, a, b):
        low, high = sorted((a, b))
        assert native.encode_duration(low) <= native.encode_duration(high)

    def test_every_code_is_valid_and_returns(self):
        decoded = [native.decode_duration(code) for code in range(1, 65536)]
        assert decoded == sorted(decoded)
        last = native.encode_duration(2**63 - 1)
        codes = [native.encode_duration(ns) for ns in decoded]
        assert codes == [min(code, last) for code in range(1, 65536)]

    def test_zero_says_unknown_and_the_shortest_is_known(self):
        assert native.encode_duration(None) == 0
        assert native.decode_duration(0) is None
        assert [native.encode_duration(ns) for ns in (-5, 0, 1)] == [1, 1, 1]
