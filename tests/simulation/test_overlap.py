"""Programs that compute while the call of the step before is under way."""

import json
import subprocess
import sys

import pytest

_STEPS = 50
# A call of 400 kB of 4 ranks: 19.2 ms on the wire at least.
_PROGRAM = (
    f"seed=3 ranks=4 calls={_STEPS} sequential=1 elements=100000 rate_mbps=250 "
    "unprotected=1"
)


def _step_ms(scenario: str) -> float:
    command = (sys.executable, "-m", "jax_optireduce", "simulate", "--json")
    line = f"{_PROGRAM} {scenario}"
    done = subprocess.run(
        (*command, "--scenario", line), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return 1e3 * json.loads(done.stdout)["calls_s"] / _STEPS


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
