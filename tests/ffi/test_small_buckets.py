"""Exact calls of buckets that are too small for a shard of every rank."""

import numpy as np
import pytest
from session import Recorded

CONTRIBUTION, RESULT = 1, 2
RANKS = 8
SMALL = 256  # elements: 1 KiB


def calls_of(elements, mode="exact"):
    """Makes two calls on all ranks; returns the session after them."""
    session = Recorded(RANKS, mode, elements=elements, shard_bytes_min=1024)
    for sequence in range(2):
        for rank in range(RANKS):
            session.call(rank, sequence)
        session.run()
        for rank in range(RANKS):
            assert session.done[rank][sequence].error == ""
            mean = (RANKS + 1) / 2 + 10 * sequence
            assert (session.buckets[rank, sequence] == RANKS * mean).all()
    return session


def segments(session, kind):
    """(source, sequence) of all datagrams of a kind."""
    return [(h.source, h.sequence) for h in session.sent if h.kind == kind]


@pytest.mark.parametrize(
    ("elements", "owners"),
    [(1, 1), (SMALL, 1), (2 * SMALL - 1, 1), (2 * SMALL, 2), (7 * SMALL, 7)],
)
def test_a_small_bucket_has_fewer_owners_and_datagrams(elements, owners):
    session = calls_of(elements)
    datagrams = -(-elements * 4 // owners // 1424)
    for kind in (CONTRIBUTION, RESULT):
        assert len(segments(session, kind)) == 2 * owners * (RANKS - 1) * datagrams
    senders = {source for source, _ in segments(session, RESULT)}
    # Ranks stay owners from call to call.
    assert len(senders) == owners


@pytest.mark.parametrize("elements", [RANKS * SMALL, 100 * SMALL])
def test_every_rank_owns_a_shard_of_a_larger_bucket(elements):
    session = calls_of(elements)
    assert {source for source, _ in segments(session, RESULT)} == set(range(RANKS))


@pytest.mark.parametrize("mode", ["bounded", "agreed", "lossy"])
def test_with_a_deadline_every_rank_owns_a_shard(mode):
    session = calls_of(SMALL, mode)
    assert {source for source, _ in segments(session, RESULT)} == set(range(RANKS))


def test_sums_are_those_of_shards_of_all_ranks():
    rng = np.random.default_rng(5)
    values = rng.normal(size=(RANKS, SMALL)).astype(np.float32)

    def sums(least):
        session = Recorded(RANKS, elements=SMALL, shard_bytes_min=least)
        for rank in range(RANKS):
            session.call(rank, values=values[rank])
        session.run()
        return [session.buckets[rank, 0].tobytes() for rank in range(RANKS)]

    assert len(set(sums(1024) + sums(1))) == 1


def owner_of(session):
    (owner,) = {source for source, _ in segments(session, RESULT)}
    return owner


def test_every_rank_names_a_rank_that_has_not_called():
    owner = owner_of(calls_of(SMALL))
    late = (owner + 1) % RANKS
    session = Recorded(RANKS, elements=SMALL, shard_bytes_min=1024, call_timeout_s=3.0)
    for rank in range(RANKS):
        if rank != late:
            session.call(rank)
    session.run(4.0)
    for rank in range(RANKS):
        if rank != late:
            error = session.done[rank][0].error
            assert f"for rank {late} (heard" in error
            assert ";" not in error


def test_a_rank_whose_result_is_lost_is_in_no_disagreement_with_the_others():
    owner = owner_of(calls_of(SMALL))
    left = (owner + 1) % RANKS
    session = Recorded(
        RANKS, elements=SMALL, shard_bytes_min=1024, mismatch_timeout_s=2.0
    )
    # The announcements of the first call show that all ranks are in it.
    for rank in range(RANKS):
        session.call(rank, 0)
    session.run(0.1)
    session.hold(RESULT, owner, to=left)
    others = [rank for rank in range(RANKS) if rank not in (left, owner)]
    for rank in range(RANKS):
        session.call(rank, 1)
    session.run(0.1)
    # The others wait in a call of another collective.
    for rank in others:
        array = np.ones(SMALL, np.float32)
        assert session.submit(rank, array, token=7, name="y") == ""
    session.run(6.0)
    assert [rank for rank in range(RANKS) if 1 not in session.done[rank]] == [left]
    session.lose()
    session.run(3.0)
    assert session.done[left][1].error == ""
    for rank in (left, owner):
        array = np.ones(SMALL, np.float32)
        assert session.submit(rank, array, token=7, name="y") == ""
    session.run()
    assert all(session.done[rank][7].error == "" for rank in range(RANKS))
