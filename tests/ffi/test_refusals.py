"""What a rank does not take for now: nobody sends it in vain, and nobody waits for long."""

import numpy as np
import pytest

from endpoints import Net, rejected
from jax_optireduce import _testing

# Of 15,000 elements: 41 datagrams.
CALLS = 5
# Source: kAskIntervalMax of ffi/protocol/refusals.h is 500 ms; a probe and its answer.
TRICKLE_PER_S = 4


def ahead(net: Net, elements: int = 15_000) -> list[np.ndarray]:
    """Rank 0 makes CALLS calls, of which rank 1 has made none."""
    arrays = [np.full(elements, k + 1, np.float32) for k in range(CALLS)]
    for k, array in enumerate(arrays):
        assert net.submit(0, array, sequence=k, token=k) == ""
    return arrays


def test_what_a_slow_program_refuses_is_not_sent_again_until_it_takes_it():
    net = Net(2)
    ahead(net)
    net.run(1.0)
    before = [rank.counters() for rank in net.ranks]
    assert before[1]["rejected_early"] <= before[0]["datagrams_sent"]
    net.run(20.0)
    after = [rank.counters() for rank in net.ranks]
    sent = sum(a["datagrams_sent"] - b["datagrams_sent"] for a, b in zip(after, before))
    # Also the reports that rank 0 waits: one in half a second for each call, acknowledged.
    assert sent <= 20 * (TRICKLE_PER_S + 2 * 2 * CALLS)
    assert after[1]["rejected_early"] == before[1]["rejected_early"]
    assert after[0]["segments_refused"] > 0


def test_what_was_refused_goes_on_in_the_moment_in_which_it_is_taken():
    net = Net(2)
    theirs = ahead(net)
    net.run(20.0)
    begun = net.now
    ours = [np.full(array.size, 10, np.float32) for array in theirs]
    for k, array in enumerate(ours):
        net.submit(1, array, sequence=k, token=k)
    while len(net.done[0]) + len(net.done[1]) < 2 * CALLS:
        net.run(0.001)
    # Not the half second after which rank 0 would ask again.
    assert net.now - begun < 0.05
    for k, (a, b) in enumerate(zip(theirs, ours)):
        assert np.all(a == k + 11)
        assert np.array_equal(a, b)


def test_other_collectives_go_on_while_one_is_refused():
    net = Net(2)
    ahead(net)
    net.run(1.0)
    others = [np.ones(50_000, np.float32) for _ in range(2)]
    for rank, array in enumerate(others):
        net.submit(rank, array, name="other", token=100)
    net.run(0.2)
    assert all(100 in done for done in net.done)
    assert all(np.all(array == 2) for array in others)


def test_a_lost_acknowledgement_that_lifts_a_refusal_costs_half_a_second_at_most():
    net = Net(2)
    theirs = ahead(net)
    net.run(20.0)
    begun = net.now
    for k in range(CALLS):
        net.submit(1, np.ones(theirs[0].size, np.float32), sequence=k, token=k)
    # Everything that rank 1 says at once is lost.
    net.collect()
    net.wire.clear()
    while len(net.done[0]) + len(net.done[1]) < 2 * CALLS:
        net.run(0.01)
    assert net.now - begun < 1.0


def test_a_replay_of_a_refused_datagram_is_a_replay():
    net = Net(2)
    ahead(net)
    net.collect()
    sent = [datagram for to, datagram in net.wire if to == 1]
    receiver = net.ranks[1]
    for datagram in sent:
        receiver.handle_datagram(net.now, datagram)
    first = rejected(receiver)
    assert first["rejected_early"] > 0
    for datagram in sent:
        receiver.handle_datagram(net.now, datagram)
    assert rejected(receiver) == first | {"rejected_replayed": len(sent)}


def test_replays_of_a_refused_datagram_do_not_keep_a_dead_rank_alive():
    net = Net(2, peer_timeout_s=4.0)
    ahead(net)
    # Rank 0 sends, and dies.
    net.collect()
    kept = [datagram for to, datagram in net.wire if to == 1]
    net.silent.add(0)
    net.submit(1, np.ones(15_000, np.float32), name="y")
    refused = next(
        datagram
        for datagram in kept
        if _testing.parse_header(datagram)[5] == CALLS - 1
    )
    for _ in range(20):
        net.ranks[1].handle_datagram(net.now, refused)
        net.run(1.0)
    assert "rank 0 has been silent" in net.done[1][0][0]


@pytest.mark.parametrize("kib", [0, 64, 600])
def test_memory_for_calls_that_the_program_has_not_made_has_a_bound(kib):
    # Without a deadline that rank 1 waits for: it gets the sums of others before it has called.
    net = Net(3, early_bytes_max=kib * 1024)
    buckets = [np.ones(60_000, np.float32) for _ in range(2)]
    for rank, array in enumerate(buckets):
        net.submit(rank, array, drop=True)
    for _ in range(200):
        net.run(0.001)
        assert net.ranks[2].memory_bytes() <= kib * 1024
