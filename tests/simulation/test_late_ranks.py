"""Exact calls with ranks whose programs are late: others relay their sums."""

import pytest
from test_simulation import assert_holds

RANKS = 8
MBPS = 200
ELEMENTS = 200_000
# The time of a bucket on a link, with all headers.
W_S = ELEMENTS * 4 * 8 * 1538 / 1432 / (MBPS * 1e6)
PROGRAM = (
    f"seed=3 ranks={RANKS} calls=4 sequential=1 elements={ELEMENTS} rate_mbps={MBPS} "
    "unprotected=1 faults_end_us=0"
)
LATE_US = 100_000
NEVER = "relay_segments_min=1000000"
WORLD_SIZES = pytest.mark.parametrize(
    "ranks", [RANKS, pytest.param(16, marks=pytest.mark.long)]
)


def relayed(report) -> int:
    return report["counters"]["segments_relayed"]


def test_relays_bring_the_end_to_one_transfer_of_the_bucket_after_the_arrival():
    line = f"{PROGRAM} late_us={LATE_US} period_us=400000"

    def after_arrival_s(report):
        return report["calls"][-1]["elapsed_s"] - LATE_US / 1e6

    with_relays = assert_holds(line)
    without = assert_holds(f"{line} {NEVER}")
    assert (relayed(with_relays) > 0, relayed(without)) == (True, 0)
    assert after_arrival_s(with_relays) < 1.4 * W_S
    assert after_arrival_s(without) > 1.6 * W_S


def test_a_rank_is_late_once_in_a_call_of_groups():
    # Two parts, one within each group and one across.
    report = assert_holds(
        f"{PROGRAM} ranks=4 groups=2 elements=600 late_us={LATE_US} period_us=400000"
    )
    for call in report["calls"]:
        assert LATE_US / 1e6 < call["elapsed_s"] < 1.1 * LATE_US / 1e6


@pytest.mark.parametrize(
    "change",
    [
        "late_us=0",
        "mode=bounded",
        "mode=lossy",
        "mode=agreed",
        "wire_format=int8",
        "ranks=2",
    ],
)
def test_nothing_is_relayed(change):
    report = assert_holds(f"{PROGRAM} late_us={LATE_US} {change}")
    assert relayed(report) == 0


def test_a_bucket_of_few_segments_is_sent_directly():
    few = f"{PROGRAM} late_us={LATE_US} relay_segments_min="
    shard = ELEMENTS * 4 // RANKS // (1472 - 40) + 1
    assert relayed(assert_holds(f"{few}{RANKS * shard + 1}")) == 0
    # Each sum of the late rank passes through one relay, and no others do.
    assert relayed(assert_holds(f"{few}{RANKS * shard}")) == 4 * shard


@pytest.mark.parametrize(
    "fault",
    [
        "loss_ppm=100000 duplicate_ppm=50000 reorder_ppm=50000",
        "loss_ppm=50000 leave_at_end=1",
        "refuse_ppm=200000",
        "lanes=2 loss_ppm=20000",
        "straggle_ppm=400000 straggle_us=300000",
    ],
)
@WORLD_SIZES
def test_relayed_sums_are_right_whatever_happens(fault, ranks):
    report = assert_holds(
        f"{PROGRAM.replace('faults_end_us=0', 'faults_end_us=2000000')} ranks={ranks} "
        f"late_us={LATE_US} relay_segments_min=1 {fault}"
    )
    assert relayed(report) > 0


@pytest.mark.parametrize("fault", ["stop", "leave", "cut"])
@WORLD_SIZES
def test_calls_end_with_an_error_if_a_relay_dies(fault, ranks):
    report = assert_holds(
        f"{PROGRAM} ranks={ranks} late_us={LATE_US} "
        f"{fault}_at_us=230000 {fault}_rank=1 "
        "cut_for_us=60000000"
    )
    assert relayed(report) > 0
    assert report["counters"]["calls_failed"] > 0
