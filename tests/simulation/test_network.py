"""The simulated network itself, on whose correctness all other results rest."""

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

# Source: UDP 8, IPv4 20, Ethernet 38 bytes, as kWireOverheadBytes in ffi/sim/network.h.
OVERHEAD_BYTES = 66
MS = 1_000_000  # nanoseconds


def make_network(
    ranks=2,
    seed=1,
    rate_mbps=1000,
    socket=1 << 20,
    queue=1 << 20,
    latency=(0, 1, MS),
    **faults,
):
    latency_ns, latency_tail, latency_hold_ns = latency
    return native.SimNetwork(
        ranks=ranks,
        seed=seed,
        rate_mbps=rate_mbps,
        propagation_ns=10_000,
        socket_bytes=socket,
        queue_bytes=queue,
        faults=faults,
        latency_ns=latency_ns,
        latency_tail=latency_tail,
        latency_hold_ns=latency_hold_ns,
    )


def send_many(network, count, sender=0, receiver=1, size=100, every_ns=10_000):
    for i in range(count):
        network.send(
            i * every_ns, sender, receiver, i.to_bytes(4, "little") * (size // 4)
        )


# ---------------------------------------------------------------------- events


@hypothesis.given(st.lists(st.integers(0, 5)))
def test_events_come_by_time_and_then_in_the_order_they_were_pushed(times):
    events = [(at, str(i)) for i, at in enumerate(times)]
    expected = [label for _, label in sorted(events, key=lambda e: (e[0], int(e[1])))]
    assert native.event_order(events) == expected


# ---------------------------------------------------------------------- links


def test_a_datagram_takes_its_bytes_over_the_rate_and_the_propagation():
    link = native.SimLink(rate_mbps=1000, propagation_ns=5000, queue_bytes_max=10_000)
    # 1000 bytes at 1 Gbit/s are 8 microseconds.
    assert link.offer(0, 1000) == 8000 + 5000
    assert link.queued_bytes(0) == 1000
    assert link.queued_bytes(4000) == 500
    assert link.offer(4000, 1000) == 16_000 + 5000
    assert link.offer(100_000, 1000) == 108_000 + 5000


def test_a_full_queue_drops_and_counts():
    link = native.SimLink(rate_mbps=1000, propagation_ns=0, queue_bytes_max=3000)
    arrivals = [link.offer(0, 1000) for _ in range(5)]
    assert arrivals == [8000, 16_000, 24_000, None, None]
    assert (link.carried, link.dropped) == (3, 2)
    assert not link.has_room(0, 1000)
    assert link.room_at(0, 1000) == 8000
    assert link.has_room(8000, 1000)


def test_a_datagram_larger_than_the_queue_fits_an_empty_one():
    link = native.SimLink(rate_mbps=1000, propagation_ns=0, queue_bytes_max=100)
    assert link.offer(0, 1000) == 8000
    assert link.offer(0, 1) is None
    assert link.room_at(0, 1000) == 8000


def test_a_stalled_link_keeps_what_waits_in_order():
    link = native.SimLink(rate_mbps=1000, propagation_ns=0, queue_bytes_max=1 << 20)
    link.stall(1 * MS)
    assert [link.offer(0, 1000), link.offer(0, 1000)] == [MS + 8000, MS + 16_000]


@hypothesis.given(
    rate_mbps=st.integers(1, 400_000),
    sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=50),
)
def test_a_busy_link_carries_exactly_its_rate(rate_mbps, sizes):
    link = native.SimLink(
        rate_mbps=rate_mbps, propagation_ns=0, queue_bytes_max=1 << 30
    )
    last = [link.offer(0, size) for size in sizes][-1]
    wanted_ns = sum(sizes) * 8000 / rate_mbps
    # Integers: the picoseconds per byte are rounded down, the total nanoseconds up.
    assert wanted_ns * 0.95 <= last <= wanted_ns + len(sizes)


# ---------------------------------------------------------------------- the switch


def test_a_datagram_passes_two_links():
    network = make_network()
    network.send(0, 0, 1, bytes(1000 - OVERHEAD_BYTES))
    [(at_ns, sender, receiver, origin, content)] = network.run()
    assert at_ns == 2 * (8000 + 10_000)
    assert (sender, receiver, origin) == (0, 1, "genuine")
    assert content == bytes(1000 - OVERHEAD_BYTES)


def test_senders_to_one_receiver_share_its_link_fairly():
    network = make_network(ranks=5)
    for _ in range(200):
        for sender in range(1, 5):
            network.send(0, sender, 0, bytes(934))
    arrivals = network.run()
    assert len(arrivals) == 800
    # The four up-links are as fast as the one down-link: it is always busy, and each
    # sender gets a quarter of it at any time.
    assert arrivals[-1][0] - arrivals[0][0] == pytest.approx(799 * 8000)
    for first in range(0, 800, 100):
        senders = [sender for _, sender, *_ in arrivals[first : first + 100]]
        assert all(senders.count(sender) == 25 for sender in range(1, 5))


def test_too_many_senders_overflow_the_queue_of_the_switch():
    network = make_network(ranks=5, queue=20_000)
    for _ in range(100):
        for sender in range(1, 5):
            network.send(0, sender, 0, bytes(934))
    arrived = len(network.run())
    faults = network.faults()
    assert faults["queue_full_switch"] == 400 - arrived
    assert arrived < 250
    assert faults["queue_full_up"] == 0


def test_a_full_up_link_drops():
    network = make_network(socket=5000)
    send_many(network, 100, size=1000, every_ns=0)
    assert len(network.run()) == 4
    assert network.faults()["queue_full_up"] == 96


def test_nothing_passes_a_cut_and_all_passes_after_it():
    network = make_network(ranks=3)
    network.set_cut(1, True)
    network.send(0, 0, 1, b"to")
    network.send(0, 1, 2, b"from")
    network.send(0, 0, 2, b"past")
    assert [content for *_, content in network.run()] == [b"past"]
    assert network.faults()["cut"] == 2
    network.set_cut(1, False)
    network.send(MS, 0, 1, b"again")
    assert [content for *_, content in network.run()] == [b"again"]


def test_a_held_rank_gets_all_that_has_reached_it_in_order_at_the_end():
    network = make_network(hold_ppm=1_000_000, hold_ns=50 * MS)
    for number in range(200):
        network.send(0, 0, 1, bytes([number]) * 934)
    arrivals = network.run()
    assert [content[0] for *_, content in arrivals] == list(range(200))
    assert network.faults()["held"] > 0
    first_ns = 2 * (8000 + 10_000)
    assert first_ns < arrivals[0][0] <= first_ns + 50 * MS
    # Its link carries on.
    assert sum(at_ns == arrivals[0][0] for at_ns, *_ in arrivals) > 1


# ---------------------------------------------------------------------- TCP bursts


@pytest.mark.parametrize("load", [0.4, 0.7])
def test_tcp_bursts_fill_their_share_of_each_link(load):
    rate_mbps, seconds = 250, 60
    link_bytes = rate_mbps * 1e6 / 8 * seconds
    segments = native.bursts_on(
        hosts=3,
        rate_mbps=rate_mbps,
        bytes_per_s=load * rate_mbps * 1e6 / 8,
        mean_bytes=200_000,
        seconds=seconds,
        seed=1,
    )
    shares = [1538 * count / link_bytes for count in segments]
    # The largest bursts are cut, which takes 7 % of the mean.
    assert all(0.85 * load < share < load for share in shares), shares
    assert len(set(segments)) == 3


# ---------------------------------------------------------------------- latency


def latencies(network, count, every_ns):
    """Returns the latency of each of `count` small datagrams, without the links."""
    send_many(network, count, every_ns=every_ns)
    on_links_ns = 2 * (10_000 + 8 * (100 + OVERHEAD_BYTES))
    return [
        at - int.from_bytes(datagram[:4], "little") * every_ns - on_links_ns
        for at, _, _, _, datagram in network.run()
    ]


@pytest.mark.parametrize("tail", [1.0, 1.5, 3.0])
def test_latency_has_its_median_and_its_99th_percentile(tail):
    network = make_network(latency=(50_000, tail, MS))
    taken = sorted(latencies(network, 20_000, every_ns=MS))
    median, percentile_99 = taken[10_000], taken[19_800]
    assert median == pytest.approx(50_000, rel=0.02)
    assert percentile_99 / median == pytest.approx(tail, rel=0.05)


def test_a_draw_of_the_latency_holds_for_its_time():
    taken = latencies(make_network(latency=(50_000, 3, MS)), 1000, every_ns=MS // 100)
    draws = [ns for ns, _ in itertools.groupby(taken)]
    # ten draws, and the datagrams delayed behind earlier ones
    assert 10 <= len(draws) <= 12 + 10


def test_a_way_keeps_its_order_whatever_its_latency():
    network = make_network(latency=(500_000, 10, MS // 10))
    send_many(network, 1000, every_ns=5000)
    assert [int.from_bytes(d[:4], "little") for *_, d in network.run()] == [
        *range(1000)
    ]


def test_ways_have_latencies_of_their_own():
    network = make_network(ranks=3, latency=(50_000, 3, MS))
    network.send(0, 0, 1, b"abcd")
    network.send(0, 2, 1, b"efgh")
    first, second = network.run()
    assert abs(first[0] - second[0]) > 1000


# ---------------------------------------------------------------------- faults


def test_loss_has_its_chance():
    network = make_network(loss_ppm=200_000)
    send_many(network, 5000)
    arrived = len(network.run())
    assert network.faults()["lost"] == 5000 - arrived
    assert 0.17 < 1 - arrived / 5000 < 0.23


def test_a_burst_loses_everything_of_one_rank_for_a_while():
    network = make_network(ranks=3, burst_ppm=5000, burst_ns=1 * MS)
    send_many(network, 5000)
    send_many(network, 50, sender=2, every_ns=MS)
    arrived = [
        int.from_bytes(c[:4], "little") for _, s, _, _, c in network.run() if s == 0
    ]
    gaps = [b - a for a, b in itertools.pairwise(arrived) if b - a > 1]
    assert network.faults()["lost_in_burst"] > 100
    assert max(gaps) > 20  # a burst takes a hundred datagrams at most


def test_copies_come_beside_the_original():
    network = make_network(duplicate_ppm=500_000, reorder_ns=MS)
    send_many(network, 1000)
    arrivals = network.run()
    copies = network.faults()["duplicated"]
    assert copies > 500
    assert len(arrivals) == 1000 + copies
    assert sum(origin == "copy" for *_, origin, _ in arrivals) == copies
    assert {content for *_, content in arrivals} == {
        i.to_bytes(4, "little") * 25 for i in range(1000)
    }


def test_held_back_datagrams_are_overtaken():
    network = make_network(reorder_ppm=300_000, reorder_ns=MS)
    send_many(network, 1000)
    order = [int.from_bytes(content[:4], "little") for *_, content in network.run()]
    assert sorted(order) == list(range(1000))
    assert order != sorted(order)
    assert 200 < network.faults()["reordered"] < 400


@pytest.mark.parametrize(
    ("field", "counter", "changed"),
    [
        ("corrupt_ppm", "corrupted", lambda c: len(c) == 100),
        ("truncate_ppm", "truncated", lambda c: len(c) < 100),
        ("extend_ppm", "extended", lambda c: len(c) > 100),
    ],
)
def test_damage_is_marked_and_counted(field, counter, changed):
    network = make_network(**{field: 300_000})
    send_many(network, 1000)
    damaged = [content for *_, origin, content in network.run() if origin == "damaged"]
    assert len(damaged) == network.faults()[counter]
    assert 200 < len(damaged) < 400
    assert all(changed(content) for content in damaged)


def test_injected_datagrams_are_marked_and_counted():
    network = make_network(
        ranks=3,
        foreign_ppm=200_000,
        garbage_ppm=200_000,
        replay_ppm=200_000,
        misdirect_ppm=200_000,
    )
    network.add_foreign(b"foreign")
    send_many(network, 1000)
    arrivals = network.run()
    injected = [(r, content) for _, _, r, o, content in arrivals if o == "injected"]
    faults = network.faults()
    kinds = [faults[k] for k in ("foreign", "garbage", "replayed", "misdirected")]
    assert all(100 < kind < 300 for kind in kinds)
    assert len(injected) == sum(kinds)
    assert sum(content == b"foreign" for _, content in injected) == faults["foreign"]
    assert any(receiver == 0 for receiver, _ in injected)  # a reflection


def test_equal_seeds_give_equal_networks_and_others_do_not():
    def run(seed):
        network = make_network(
            seed=seed,
            loss_ppm=100_000,
            reorder_ppm=100_000,
            reorder_ns=MS,
            corrupt_ppm=9000,
        )
        send_many(network, 500)
        return network.run()

    assert run(1) == run(1)
    assert run(1) != run(2)


# ---------------------------------------------------------------------- scenarios


def test_a_scenario_prints_what_differs_and_reads_it_back():
    line = "seed=7 ranks=4 mode=lossy loss_ppm=30000"
    assert native.normalise_scenario(line) == line
    assert native.normalise_scenario("loss_ppm=30000 mode=lossy ranks=4 seed=7") == line


@hypothesis.given(
    seed=st.integers(0, 2**64 - 1), size=st.sampled_from(["small", "medium"])
)
def test_every_seed_makes_a_scenario_that_reads_back(seed, size):
    line = native.normalise_scenario(f"seed={seed} size={size}")
    assert native.normalise_scenario(line) == line


def test_a_line_changes_the_scenario_of_its_seed():
    whole = native.normalise_scenario("seed=11 size=small").split()
    changed = native.normalise_scenario("calls=33 size=small seed=11").split()
    assert "calls=33" in changed
    unchanged = {field for field in whole if not field.startswith("calls=")}
    assert unchanged <= set(changed)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed=1 los_ppm=3", "did you mean 'loss_ppm'"),
        ("seed=1 ranks", "key=value"),
        ("seed=1 ranks=0", "from 1 to 1024"),
        ("seed=1 ranks=x", "from 1 to 1024"),
        ("seed=1 ranks=65 part_for_us=1", "ranks=64 or fewer"),
        ("seed=1 ranks=6 groups=4 sequential=1", "that it divides"),
        ("seed=1 ranks=8 groups=4", "sequential=1"),
        ("seed=1 mode=fast", "exact lossy mixed"),
        ("seed=1 ranks=2 stop_rank=2", "rank 2"),
        ("seed=1 size=huge", "small or medium"),
        ("seed=1 ranks=17 mode=lossy", "ranks=16"),
        ("seed=1 ranks=4 mode=bounded absent=3", "more than half"),
        ("seed=1 ranks=3 mode=bounded absent=8", "more than half"),
        ("seed=1 ranks=3 mode=exact absent=1", "mode=bounded"),
        ("seed=1 ranks=6 ranks_per_slice=2 mode=bounded absent=1", "ranks of a slice"),
        ("seed=1 ranks=4 mode=bounded sequential=1 meet_calls=1 absent=1", "absent=0"),
    ],
)
def test_a_wrong_line_says_what_is_wrong(line, message):
    with pytest.raises(ValueError, match=message):
        native.normalise_scenario(line)
