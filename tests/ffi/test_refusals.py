"""What a rank does not take yet: it is not sent in vain, and does not wait for long."""

import numpy as np
import pytest
from endpoints import Net, rejected

from jax_optireduce import _testing

CALLS = 5
# Source: of ffi/protocol/options.h. So many calls are taken, the next one is refused.
MAX_LAG = 2
# Source: kAskIntervalMax of refusals.h is 500 ms; a probe and its answer.
TRICKLE_PER_S = 4


def ahead(net: Net, elements: int = 15_000) -> list[np.ndarray]:
    """Rank 0 makes CALLS bounded calls, of which rank 1 has made none."""
    arrays = [np.full(elements, k + 1, np.float32) for k in range(CALLS)]
    for k, array in enumerate(arrays):
        assert net.submit(0, array, sequence=k, token=k, carry=True) == ""
    return arrays


def follow(net: Net, arrays: list[np.ndarray]) -> None:
    """Rank 1 makes the same calls."""
    for k, array in enumerate(arrays):
        net.submit(1, np.ones_like(array), sequence=k, token=k, carry=True)


def follow_after_refusals() -> tuple[Net, int]:
    """Rank 1 makes the calls 20 s later; returns what it had received before."""
    net = Net(2)
    theirs = ahead(net)
    net.run(20.0)
    received = net.ranks[1].counters()["datagrams_received"]
    follow(net, theirs)
    return net, received


def test_what_a_slow_program_refuses_is_not_sent_again_until_it_takes_it():
    net = Net(2)
    ahead(net)
    net.run(1.0)
    before = [rank.counters() for rank in net.ranks]
    assert before[1]["rejected_early"] <= before[0]["datagrams_sent"]
    net.run(20.0)
    after = [rank.counters() for rank in net.ranks]
    sent = sum(
        a["datagrams_sent"] - b["datagrams_sent"]
        for a, b in zip(after, before, strict=True)
    )
    assert 0 < sent <= 21 * TRICKLE_PER_S
    assert after[1]["rejected_early"] == before[1]["rejected_early"]
    assert after[0]["segments_refused"] > 0


def test_what_was_refused_goes_on_in_the_moment_in_which_it_is_taken():
    net, held = follow_after_refusals()
    begun = net.now
    # Not the half second after which rank 0 would ask again.
    net.run(0.05)
    assert net.ranks[1].counters()["datagrams_received"] > held + 15_000 * 4 / 2 / 1472
    net.run(2.0)
    assert net.now - begun < 2.1
    # Call 0 of rank 0 may wait for its lag, having more than `max_lag` behind it.
    assert len(net.done[1]) == CALLS
    assert all(message == "" for done in net.done for message, *_ in done.values())


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
    net, held = follow_after_refusals()
    begun = net.now
    # Everything that rank 1 says at once is lost.
    net.collect()
    net.wire.clear()
    net.run(0.6)
    assert net.now - begun < 0.7
    assert net.ranks[1].counters()["datagrams_received"] > held + 15_000 * 4 / 2 / 1472


def test_a_replay_of_a_refused_datagram_is_a_replay():
    net = Net(2)
    ahead(net, elements=200)
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
    ahead(net, elements=200)
    # Rank 0 sends, and dies.
    net.collect()
    kept = [datagram for to, datagram in net.wire if to == 1]
    net.silent.add(0)
    net.submit(1, np.ones(15_000, np.float32), name="y")
    refused = next(
        datagram for datagram in kept if _testing.parse_header(datagram)[5] == MAX_LAG
    )
    for _ in range(20):
        net.ranks[1].handle_datagram(net.now, refused)
        net.run(1.0)
    assert "rank 0 has been silent" in net.done[1][0][0]


@pytest.mark.parametrize("kib", [0, 64, 600])
def test_memory_for_calls_that_the_program_has_not_made_has_a_bound(kib):
    # Rank 2 gets the contributions and the sums of others before it has called.
    net = Net(3, early_bytes_max=kib * 1024)
    buckets = [np.ones(60_000, np.float32) for _ in range(2)]
    for rank, array in enumerate(buckets):
        net.submit(rank, array, drop=True)
    for _ in range(200):
        net.run(0.001)
        assert net.ranks[2].memory_bytes() <= kib * 1024


@pytest.mark.parametrize("suspend", [False, True])
def test_what_is_too_far_ahead_is_folded_where_ranks_that_lag_are_suspended(suspend):
    net = Net(2, suspend_on_lag=suspend)
    arrays = [np.full(600, k + 1, np.float32) for k in range(CALLS)]
    for k, array in enumerate(arrays):
        net.submit(0, array, sequence=k, token=k, carry=True)
        net.run(1.0)
    lagging = net.ranks[1]
    assert (rejected(lagging) == {}) == suspend
    # Of the oldest calls only their sum is kept.
    assert lagging.memory_bytes() <= (MAX_LAG + 2) * arrays[0].nbytes
