"""The time of lossy calls beside that of calls that retransmit, in virtual time."""

import statistics

import pytest

from jax_optireduce import _native

# Calls that learn the bounds of the stages.
LEARNED = 20
PROGRAM = (
    "ranks=4 calls=60 elements=25000 sequential=1 compute_us=40000 rate_mbps=62 "
    "late_budget_ppm=100000 reduce_scatter_deadline_us=500000 "
    "all_gather_deadline_us=500000 faults_end_us=60000000 unprotected=1"
)


def mean_s(mode: str, line: str) -> float:
    """Mean time of a call after the learning, over two seeds."""
    times: list[float] = []
    for seed in (1, 2):
        scenario = f"seed={seed} {PROGRAM} mode={mode} {line}"
        report = _native.simulate(scenario)
        assert report["ok"], f"{report['failure']}: {scenario}"
        times += [call["elapsed_s"] for call in report["calls"]][LEARNED:]
    return statistics.fmean(times)


def test_loss_does_not_lengthen_lossy_calls():
    line = "loss_ppm=50000"
    assert mean_s("lossy", line) < mean_s("exact", line)


def test_beside_bursts_lossy_calls_take_about_the_time_of_exact_ones():
    line = "tcp_load_percent=70"
    assert mean_s("lossy", line) < 1.2 * mean_s("exact", line)


@pytest.mark.long
def test_a_switch_with_small_queues_does_not_lose_much_more():
    # Without a limit of the incast a third is lost.
    line = "ranks=8 calls=30 elements=400000 rate_mbps=1000 queue_bytes=32768"
    report = _native.simulate(f"seed=1 {PROGRAM} mode=lossy {line}")
    assert report["ok"], report["failure"]
    late = [call["late"] for call in report["calls"]][LEARNED:]
    assert statistics.fmean(late) < 0.1
