"""Learned deadlines: the data that they cover, and their bounds."""

import statistics

import pytest

from jax_optireduce import _native

# Source: kCalibrationCalls; and a few more for the data under way.
MEASURED_CALLS = 25
SMALL = (
    "seed=1 ranks=4 elements=2048 sequential=1 faults_end_us=60000000 "
    "late_budget_ppm=10000"
)


def late_share(line: str) -> float:
    """The late share of the calls after the calibration."""
    report = _native.simulate(line)
    assert report["ok"], report["failure"]
    return statistics.fmean(call["late"] for call in report["calls"][MEASURED_CALLS:])


@pytest.mark.parametrize("bound_ms", [15, 200])
def test_a_bounded_call_has_the_time_of_both_its_stages(bound_ms):
    # Each stage takes 10 ms, so that either bound has room for both.
    deadlines = (
        f"reduce_scatter_deadline_us={bound_ms}000 all_gather_deadline_us={bound_ms}000"
    )
    assert late_share(f"{SMALL} calls=60 mode=bounded delay_us=5000 {deadlines}") == 0


def test_a_lossy_call_has_room_for_programs_that_are_late_now_and_then():
    # One start in ten is up to 15 ms late, and a call takes 40 ms.
    line = (
        f"{SMALL} calls=150 mode=lossy delay_us=10000 straggle_ppm=100000 "
        "straggle_us=15000 reduce_scatter_deadline_us=200000 "
        "all_gather_deadline_us=200000"
    )
    assert late_share(line) < 1e-3
