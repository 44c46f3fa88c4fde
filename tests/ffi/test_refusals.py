"""Refused data: not retransmitted in vain, and not delayed for long."""

import numpy as np
import pytest
from session import Session, rejected

import optireduce_testing as native

CALLS = 5
# Source: ffi/protocol/options.h. This many calls are accepted, the next is refused.
MAX_LAG = 2
# Source: kAskIntervalMax of refusals.h is 500 ms; a probe and its answer.
TRICKLE_PER_S = 4


def ahead(session: Session, elements: int = 15_000) -> list[np.ndarray]:
    """Rank 0 makes CALLS bounded calls, of which rank 1 has made none."""
    arrays = [np.full(elements, k + 1, np.float32) for k in range(CALLS)]
    for k, array in enumerate(arrays):
        assert session.submit(0, array, sequence=k, mode="bounded") == ""
    return arrays


def follow(session: Session, arrays: list[np.ndarray]) -> None:
    """Rank 1 makes the same calls."""
    for k, array in enumerate(arrays):
        session.submit(1, np.ones_like(array), sequence=k, mode="bounded")


def follow_after_refusals() -> tuple[Session, int]:
    """Rank 1 makes the calls 20 s later; returns its earlier receptions."""
    session = Session(2)
    theirs = ahead(session)
    session.run(20.0)
    received = session.ranks[1].counters()["datagrams_received"]
    follow(session, theirs)
    return session, received


def test_what_a_slow_program_refuses_is_not_sent_again_until_it_takes_it():
    session = Session(2)
    ahead(session)
    session.run(1.0)
    before = [rank.counters() for rank in session.ranks]
    assert before[1]["rejected_early"] <= before[0]["datagrams_sent"]
    session.run(20.0)
    after = [rank.counters() for rank in session.ranks]
    sent = sum(
        a["datagrams_sent"] - b["datagrams_sent"]
        for a, b in zip(after, before, strict=True)
    )
    assert 0 < sent <= 21 * TRICKLE_PER_S
    assert after[1]["rejected_early"] == before[1]["rejected_early"]
    assert after[0]["segments_refused"] > 0


def test_what_was_refused_goes_on_in_the_moment_in_which_it_is_taken():
    session, held = follow_after_refusals()
    begun = session.now
    # Not the half second after which rank 0 would probe again.
    session.run(0.05)
    assert (
        session.ranks[1].counters()["datagrams_received"] > held + 15_000 * 4 / 2 / 1472
    )
    session.run(2.0)
    assert session.now - begun < 2.1
    # Call 0 of rank 0 may wait for its lag, having more than `max_lag` behind it.
    assert len(session.done[1]) == CALLS
    assert all(call.error == "" for done in session.done for call in done.values())


def test_other_collectives_go_on_while_one_is_refused():
    session = Session(2)
    ahead(session)
    session.run(1.0)
    others = [np.ones(50_000, np.float32) for _ in range(2)]
    for rank, array in enumerate(others):
        session.submit(rank, array, name="other", token=100)
    session.run(0.2)
    assert all(100 in done for done in session.done)
    assert all(np.all(array == 2) for array in others)


def test_a_lost_acknowledgement_that_lifts_a_refusal_costs_half_a_second_at_most():
    session, held = follow_after_refusals()
    begun = session.now
    # All datagrams that rank 1 sends now are lost.
    session.collect()
    session.wire.clear()
    session.run(0.6)
    assert session.now - begun < 0.7
    assert (
        session.ranks[1].counters()["datagrams_received"] > held + 15_000 * 4 / 2 / 1472
    )


def test_a_replay_of_a_refused_datagram_is_a_replay():
    session = Session(2)
    ahead(session, elements=200)
    session.collect()
    sent = [datagram for to, datagram in session.wire if to == 1]
    receiver = session.ranks[1]
    for datagram in sent:
        receiver.handle_datagram(session.now, datagram)
    first = rejected(receiver)
    assert first["rejected_early"] > 0
    for datagram in sent:
        receiver.handle_datagram(session.now, datagram)
    assert rejected(receiver) == first | {"rejected_replayed": len(sent)}


def test_replays_of_a_refused_datagram_do_not_keep_a_dead_rank_alive():
    session = Session(2, peer_timeout_s=4.0)
    ahead(session, elements=200)
    # Rank 0 sends, and dies.
    session.collect()
    kept = [datagram for to, datagram in session.wire if to == 1]
    session.silent.add(0)
    session.submit(1, np.ones(15_000, np.float32), name="y")
    refused = next(
        datagram
        for datagram in kept
        if native.parse_header(datagram).sequence == MAX_LAG
    )
    for _ in range(20):
        session.ranks[1].handle_datagram(session.now, refused)
        session.run(1.0)
    assert "rank 0 has been silent" in session.done[1][0].error


@pytest.mark.parametrize("kib", [0, 64, 600])
def test_memory_for_calls_that_the_program_has_not_made_has_a_bound(kib):
    # Rank 2 gets the contributions and the sums of others before its own call.
    session = Session(3, early_bytes_max=kib * 1024)
    buckets = [np.ones(60_000, np.float32) for _ in range(2)]
    for rank, array in enumerate(buckets):
        session.submit(rank, array, mode="lossy")
    for _ in range(200):
        session.run(0.001)
        assert session.ranks[2].memory_bytes() <= kib * 1024


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_too_far_ahead_is_merged_where_calls_go_on(ranks):
    session = Session(ranks)
    arrays = [np.full(600, k + 1, np.float32) for k in range(CALLS)]
    for k, array in enumerate(arrays):
        session.submit(0, array, sequence=k, mode="bounded")
        session.run(1.0)
    lagging = session.ranks[1]
    assert (rejected(lagging) == {}) == (ranks > 2)
    # Only the sum of the oldest calls is retained.
    assert lagging.memory_bytes() <= (MAX_LAG + ranks) * arrays[0].nbytes
