"""Programs that compute while the call of the step before is under way."""

import pytest

from jax_optireduce import _native

_STEPS = 50
# A call of 100 kB of 4 ranks: 19.4 ms on the wire at least.
_PROGRAM = (
    f"seed=3 ranks=4 calls={_STEPS} sequential=1 elements=25000 rate_mbps=62 "
    "unprotected=1"
)


def _step_ms(scenario: str) -> float:
    report = _native.simulate(f"{_PROGRAM} {scenario}")
    assert report["ok"], report["failure"]
    return 1e3 * report["calls_s"] / _STEPS


@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded"])
def test_a_step_takes_as_long_as_the_longer_of_computation_and_call(mode):
    how = f"mode={mode} reduce_scatter_deadline_us=500000 all_gather_deadline_us=500000"
    call_ms = _step_ms(f"{how} compute_us=1")
    assert 19 < call_ms < 25
    for compute_ms in (5, 40):
        computing = f"{how} compute_us={1000 * compute_ms}"
        one_by_one = _step_ms(computing)
        overlapped = _step_ms(f"{computing} overlap=1")
        assert one_by_one == pytest.approx(call_ms + compute_ms, rel=0.05)
        assert overlapped == pytest.approx(max(call_ms, compute_ms), rel=0.05)
