"""Paths that lose long datagrams, and receivers that refuse, in virtual time."""

import pytest
from test_simulation import assert_holds


@pytest.mark.parametrize("one_way", [0, 1])
@pytest.mark.parametrize("mode", ["exact", "agreed"])
def test_a_path_that_loses_long_datagrams_ends_calls_with_their_lengths(mode, one_way):
    # The checker reads the error.
    report = assert_holds(
        f"seed=1 ranks=3 calls=40 sequential=1 elements=20000 mode={mode} "
        f"think_us=2000 mtu_at_us=20000 mtu_rank=2 mtu_one_way={one_way} "
        "peer_timeout_us=1000000"
    )
    assert report["counters"]["calls_failed"] >= 3
    assert report["faults"]["too_long"] > 0


def test_ranks_go_on_without_one_behind_a_path_that_loses_long_datagrams():
    report = assert_holds(
        "seed=1 ranks=4 calls=20 sequential=1 elements=20000 mode=bounded "
        "think_us=400000 mtu_at_us=500000 mtu_rank=3 peer_timeout_us=1000000"
    )
    assert report["counters"]["calls_completed"] >= 3 * 20


@pytest.mark.parametrize(("sender", "receiver"), [(1, 0), (2, 0), (0, 2), (1, 2)])
@pytest.mark.parametrize("ranks", [3, 4, 7])
@pytest.mark.parametrize("lanes", [1, 2])
def test_the_sender_of_one_path_that_loses_long_datagrams_goes_and_rank_0_never(
    sender, receiver, ranks, lanes
):
    # The checker knows which one is to go, and that the others go on.
    report = assert_holds(
        f"seed=1 ranks={ranks} calls=20 sequential=1 elements=20000 mode=bounded "
        f"think_us=400000 mtu_at_us=500000 mtu_rank={sender} mtu_to={receiver} "
        f"peer_timeout_us=1000000 lanes={lanes}"
    )
    assert report["counters"]["calls_completed"] >= (ranks - 1) * 20
    assert report["faults"]["too_long"] > 0


def test_a_path_to_a_rank_that_was_removed_does_not_count_in_a_later_agreement():
    # Rank 0 stays in the place of rank 2; then rank 5 dies, and no other rank goes.
    report = assert_holds(
        "seed=1 ranks=7 calls=40 sequential=1 elements=20000 mode=bounded "
        "think_us=400000 mtu_at_us=500000 mtu_rank=0 mtu_to=2 "
        "stop_at_us=9000000 stop_rank=5 peer_timeout_us=1000000"
    )
    assert report["counters"]["calls_completed"] >= 5 * 40


@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded"])
def test_a_path_that_loses_long_datagrams_gets_a_trial_now_and_then(mode):
    flows = 4
    lost = []
    for seconds in (2, 10):
        report = assert_holds(
            f"seed=1 ranks=3 calls=10 sequential=1 elements=20000 mode={mode} "
            "think_us=2000 mtu_at_us=10000 mtu_rank=2 "
            f"peer_timeout_us={seconds}000000"
        )
        lost.append(report["faults"]["too_long"])
    # The datagrams under way when the path changes, and trials at intervals of up to 1
    # s.
    assert lost[0] <= flows * 100
    assert lost[1] - lost[0] <= flows * 2 * 8


def test_what_short_datagrams_carry_passes_a_path_that_loses_long_ones():
    report = assert_holds(
        "seed=1 ranks=3 calls=40 sequential=1 elements=200 think_us=100000 "
        "mtu_at_us=20000 mtu_rank=2 mtu_bytes=1000 peer_timeout_us=1000000"
    )
    assert report["counters"]["calls_completed"] == 3 * 40


def test_what_a_slow_program_refuses_is_sent_about_once():
    # Rank 1 computes for 10 s before each call; the other is two calls ahead of it.
    calls = 6
    report = assert_holds(
        f"seed=1 ranks=2 calls={calls} elements=20000 mode=bounded max_lag=1 "
        "late_us=10000000 peer_timeout_us=60000000 sequential=1"
    )
    counters = report["counters"]
    assert counters["rejected_early"] > 0
    # At most those under way of 28 contributions and 28 results are refused.
    assert counters["rejected_early"] <= calls * 2 * 28
    # A call, its drain, and two probes a second with their answers.
    assert counters["datagrams_sent"] <= calls * 3 * 200 + 10 * calls * 2 * 2 * 3 * 4


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_cannot_send_its_last_data_is_removed_though_it_waits_for_none(
    rank,
):
    # It has all data of the others, and ends its drain; the others wait for its own.
    report = assert_holds(
        "seed=1 ranks=4 calls=2 elements=4096 mode=bounded "
        "rate_mbps=100 delay_us=1000 start_skew_us=3000 think_us=2000 "
        "reduce_scatter_deadline_us=2000 all_gather_deadline_us=300 "
        f"mtu_at_us=12000 mtu_bytes=700 mtu_rank={rank} mtu_one_way=1 "
        "peer_timeout_us=1000000 mismatch_timeout_us=4000000"
    )
    assert report["faults"]["too_long"] > 0
