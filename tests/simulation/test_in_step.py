"""After the last fault all ranks are in step again, whatever a step calls."""

import pytest

from jax_optireduce import _native

COMPUTE_S = 0.01  # time before each call
# Steps after the faults, and before the first programs end.
SETTLED = slice(150, 180)


def settled_calls(line: str) -> list[dict[str, float]]:
    report = _native.simulate(
        f"ranks=4 calls=300 sequential=1 compute_us={COMPUTE_S * 1e6:.0f} "
        f"peer_timeout_us=30000000 faults_end_us=1000000 {line}"
    )
    assert report["ok"], f"{report['failure']}: {report['scenario']}"
    return report["calls"][SETTLED]


LATE_FIRST_CALLS = "start_skew_us=1000000"
PAUSES = "straggle_ppm=60000 straggle_us=300000 straggle_end_us=1000000"
FREEZE = "freeze_at_us=200000 freeze_for_us=500000 freeze_rank=2"

LEARNED = (
    "late_budget_ppm=50000 reduce_scatter_deadline_us=200000 "
    "all_gather_deadline_us=200000"
)
LONG = "reduce_scatter_deadline_us=150000 all_gather_deadline_us=150000"
SHORT = "reduce_scatter_deadline_us=4000 all_gather_deadline_us=4000"

# The buckets of a step; of small ones each has one owner.
STEPS = {
    "one": "collectives=1 elements=5000",
    "two": "collectives=2 elements=5000",
    "small": "collectives=2 elements=50",
    "four": "collectives=4 elements=5000",
    "rare": "collectives=3 elements=5000 rare=10",
}


def _in_step_again():
    """Each step with each deadline; the other faults are for `make long`."""
    faults = (LATE_FIRST_CALLS, PAUSES, FREEZE)
    for i, step in enumerate(STEPS):
        for j, deadlines in enumerate((LEARNED, LONG, SHORT)):
            for k, fault in enumerate(faults):
                marks = () if (i + j + k) % 3 == 0 else pytest.mark.long
                yield pytest.param(step, deadlines, fault, marks=marks)


@pytest.mark.parametrize(("step", "deadlines", "faults"), [*_in_step_again()])
def test_ranks_are_in_step_again_after_the_last_fault(step, deadlines, faults):
    for seed in range(1, 4):
        line = f"seed={seed} {STEPS[step]} {deadlines} {faults}"
        bounded = settled_calls(f"mode=bounded {line}")
        exact = settled_calls(f"mode=exact {line}")
        late = sum(call["late"] for call in bounded) / len(bounded)
        assert late < 0.01, line
        steps_s = [
            sum(call["elapsed_s"] + COMPUTE_S for call in calls)
            for calls in (bounded, exact)
        ]
        assert steps_s[0] < 1.2 * steps_s[1], line


@pytest.mark.parametrize("ranks", [3, 8, pytest.param(16, marks=pytest.mark.long)])
def test_any_number_of_ranks_is_in_step_again(ranks):
    for seed in range(1, 4):
        line = f"seed={seed} {STEPS['two']} ranks={ranks} {SHORT} {LATE_FIRST_CALLS}"
        calls = settled_calls(f"mode=bounded {line}")
        assert sum(call["late"] for call in calls) / len(calls) < 0.01, line


STEADY = "mode=bounded ranks=4 calls=100 sequential=1 compute_us=5000 settle_calls=20"


@pytest.mark.parametrize("faults", [LATE_FIRST_CALLS, PAUSES])
def test_all_data_is_in_time_within_twenty_calls(faults):
    for seed in range(1, 4):
        line = f"{STEADY} seed={seed} collectives=2 {faults}"
        report = _native.simulate(line)
        assert report["ok"], f"{report['failure']}: {report['scenario']}"


def test_the_simulator_finds_ranks_that_are_not_in_step():
    report = _native.simulate(
        f"{STEADY} seed=1 elements=100000 faults_end_us=0 "
        "reduce_scatter_deadline_us=100 all_gather_deadline_us=100"
    )
    assert "after the last fault" in report["failure"]


def test_programs_that_are_late_by_themselves_never_settle():
    with pytest.raises(ValueError, match="settle_calls= needs"):
        _native.simulate(f"{STEADY} late_us=1000")
