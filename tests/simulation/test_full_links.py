"""Slow links and absent ranks, in virtual time: fewer bytes, means of the present."""

import statistics

import pytest
from test_simulation import assert_holds

_PROGRAM = (
    "seed=1 ranks=4 calls=60 elements=40000 mode=bounded sequential=1 period_us=80000 "
    "reduce_scatter_deadline_us=500000 all_gather_deadline_us=500000 "
)


def bytes_sent(line: str) -> int:
    return assert_holds(_PROGRAM + line)["counters"]["bytes_sent"]


@pytest.mark.parametrize("mode", ["bounded", "agreed", "exact"])
def test_calls_are_rounded_on_slow_links_and_not_on_fast_ones(mode):
    sent = {
        (wire_format, mbps): bytes_sent(
            f"mode={mode} wire_format={wire_format} rate_mbps={mbps}"
        )
        for wire_format in ("float32", "auto", "int8")
        for mbps in (50, 40000)
    }
    # Announcements name the format.
    assert sent["auto", 40000] == pytest.approx(sent["float32", 40000], rel=1e-3)
    # The first calls are float32.
    assert sent["int8", 50] < sent["auto", 50] < 0.6 * sent["float32", 50]


@pytest.mark.parametrize("ranks", [4, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "links",
    [
        "rate_mbps=300 slow_rank=3 slow_factor=3",
        "rate_mbps=100 latency_us=3000 latency_tail_percent=300",
        "rate_mbps=100 stall_ppm=200 stall_us=20000",
        "rate_mbps=100 cross_traffic_at_us=1 cross_traffic_for_us=60000000",
    ],
)
def test_data_is_not_late_because_others_are_served_before(links, ranks):
    # With this incast a rank serves one peer after another. The last one sees its data
    # begin late, though the program calls in time.
    report = assert_holds(
        f"{_PROGRAM}incast=1 ranks={ranks} calls=120 elements={25000 * ranks} "
        f"late_budget_ppm=100000 faults_end_us=60000000 {links}"
    )
    calibrated = [call["late"] for call in report["calls"]][40:]
    assert sum(calibrated) / len(calibrated) < 0.1


@pytest.mark.parametrize("queue_ms", [20, 400])
@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_no_rank_is_given_up_beside_a_link_that_is_full_for_longer(mode, queue_ms):
    # Each call takes 9.6 s of a link of 10 Mbit/s, three times the peer timeout; signs
    # of life wait in the same queue.
    report = assert_holds(
        f"seed=1 ranks=4 calls=3 elements=2000000 sequential=1 mode={mode} "
        f"rate_mbps=10 queue_bytes={1250 * queue_ms} peer_timeout_us=3000000 "
        "reduce_scatter_deadline_us=60000000 all_gather_deadline_us=60000000"
    )
    assert all(call["elapsed_s"] > 3 * 3 for call in report["calls"])
    assert report["counters"]["calls_failed"] == 0
    # The fourth one is the drain.
    assert len(report["calls"]) == (4 if mode == "bounded" else 3)


@pytest.mark.parametrize(
    ("datagrams", "most"),
    [
        pytest.param("datagram_bytes=1472 batch_max=44", 1.145, marks=pytest.mark.long),
        ("datagram_bytes=8972", 1.085),
    ],
)
def test_ranks_that_start_at_once_measure_their_paths_without_a_queue(datagrams, most):
    # A path whose first round trips include a queue gets more of the links than others,
    # and the flows beside it end last.
    wire_s = 2 * 3 / 4 * 8_000_000 * 8e-9
    medians = []
    for seed in range(1, 4):
        report = assert_holds(
            f"seed={seed} ranks=4 calls=6 elements=2000000 sequential=1 {datagrams} "
            "receive_buffer_bytes=8388608 queue_bytes=524288 faults_end_us=60000000"
        )
        calls = [call["elapsed_s"] for call in report["calls"]]
        medians.append(statistics.median(calls) / wire_s)
    assert statistics.fmean(medians) < most


def test_flows_of_large_datagrams_fill_their_links_with_small_buffers():
    # A rank that counts its own sums among the data to come from others weighs each of
    # its flows too little, and its windows are smaller than the path.
    wire_s = 2 * 3 / 4 * 8_000_000 * 8e-9
    report = assert_holds(
        "seed=1 ranks=4 calls=6 elements=2000000 sequential=1 datagram_bytes=8972 "
        "batch_max=7 receive_buffer_bytes=425984 queue_bytes=524288 "
        "faults_end_us=60000000"
    )
    calls = [call["elapsed_s"] for call in report["calls"]]
    assert statistics.median(calls) < 1.062 * wire_s


def test_a_stalled_host_delays_a_call_by_less_than_its_stalls():
    def mean_s(faults: str) -> tuple[float, float]:
        report = assert_holds(
            "seed=1 ranks=4 calls=10 elements=2000000 sequential=1 batch_max=44 "
            "receive_buffer_bytes=8388608 queue_bytes=524288 faults_end_us=60000000 "
            + faults
        )
        calls = [call["elapsed_s"] for call in report["calls"]]
        return sum(calls) / len(calls), report["faults"]["held"] / len(calls)

    clean_s, _ = mean_s("")
    stalled_s, stalls = mean_s("hold_ppm=60 hold_us=32000")
    assert stalls > 1
    assert (stalled_s - clean_s) / (stalls * 0.016) < 0.6


@pytest.mark.parametrize("seed", range(3))
def test_a_mean_of_the_present_holds_each_contribution_less_than_twice(seed):
    report = assert_holds(
        f"seed={seed} ranks=5 calls=40 elements=4000 mode=bounded "
        "means=1 wire_format=auto rate_mbps=5 period_us=50000 straggle_ppm=100000 "
        "straggle_us=300000 late_budget_ppm=100000 reduce_scatter_deadline_us=500000 "
        "all_gather_deadline_us=500000"
    )
    assert report["counters"]["calls_skipped"] > 0


@pytest.mark.parametrize("late_us", [5000, 15000, 30000])
def test_a_slow_rank_and_the_others_do_not_wait_for_each_other(late_us):
    # Its process can complete its shard without its contribution while the others wait
    # for those to theirs: it takes part in that call, and does not wait for the next.
    report = assert_holds(
        "seed=1 ranks=4 calls=60 elements=100000 mode=bounded sequential=1 incast=1 "
        f"rate_mbps=250 think_us=30000 late_us={late_us} "
        "reduce_scatter_deadline_us=500000 all_gather_deadline_us=500000 "
        "late_budget_ppm=100000"
    )
    # At the end the others wait for all calls of the slow rank.
    elapsed = sorted(call["elapsed_s"] for call in report["calls"])
    assert elapsed[-2] < 0.3


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(s, marks=pytest.mark.long) for s in range(2, 6))]
)
def test_calls_do_not_wait_for_a_rank_that_joins_every_second_one(seed):
    def typical_s(late_us: int) -> float:
        report = assert_holds(
            f"seed={seed} ranks=4 calls=120 elements=96000 mode=bounded sequential=1 "
            "means=1 rate_mbps=250 compute_us=28000 think_us=4000 "
            f"late_us={late_us} timer_late_us=500 reduce_scatter_deadline_us=500000 "
            "all_gather_deadline_us=500000 late_budget_ppm=100000"
        )
        # After the calibration, and before the slow rank is alone.
        calls = [call["elapsed_s"] for call in report["calls"]][20:100]
        return sum(calls) / len(calls)

    assert typical_s(50_000) < 1.5 * typical_s(0)


@pytest.mark.parametrize("delays", ["late_us=500000", "straggle_ppm=300000"])
@pytest.mark.parametrize("meet_calls", [1, 2, 5])
def test_waits_do_not_grow_where_programs_meet_outside_of_the_session(
    delays, meet_calls
):
    # There the others wait for the rank that waits for their next call.
    def calls_s(mode: str) -> float:
        report = assert_holds(
            f"seed=1 ranks=4 calls=60 elements=40000 mode={mode} sequential=1 "
            "compute_us=20000 reduce_scatter_deadline_us=100000 "
            "all_gather_deadline_us=100000 peer_timeout_us=30000000 "
            f"straggle_us=500000 meet_calls={meet_calls} {delays}"
        )
        return report["calls_s"]

    assert calls_s("bounded") < 3 * calls_s("exact")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_tcp_bursts_to_some_ranks_do_not_stop_the_data_for_others(mode):
    # The bursts are equal with a fixed number of peers at a time: all.
    def steps_s(incast: int) -> float:
        report = assert_holds(
            f"seed=1 ranks=8 calls=60 elements=100000 mode={mode} sequential=1 "
            f"compute_us=40000 rate_mbps=250 incast={incast} unprotected=1 "
            "tcp_load_percent=70 faults_end_us=30000000 late_budget_ppm=100000 "
            "reduce_scatter_deadline_us=500000 all_gather_deadline_us=500000"
        )
        return report["calls_s"]

    assert steps_s(0) < 1.05 * steps_s(7)
