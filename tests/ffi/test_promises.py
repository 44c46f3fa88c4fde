"""Promises of endpoints, checked at their limits.

No stage ends early, no rank is abandoned early, no data beyond the promised lead is
accepted, and a lost leave message is repeated.

Virtual time, on a perfect network without latency.
"""

import random

import numpy as np
import pytest
from session import Session

import optireduce_testing as native

DEADLINE_S = 0.1  # both stages together
JUST_S = 1e-6
CONTRIBUTION = 1
RESULT = 2
LEAVE = 6
LARGE = 9


@pytest.mark.parametrize("mode", ["agreed", "bounded", "lossy"])
def test_a_first_stage_that_misses_a_contribution_closes_at_its_deadline(mode):
    session = Session(3, mode)
    start = session.now
    session.call(0)
    session.call(1)
    session.until(start + DEADLINE_S / 2 - JUST_S)
    assert session.expired(0) == session.expired(1) == 0
    session.until(start + DEADLINE_S / 2 + JUST_S)
    assert session.expired(0) == session.expired(1) == 1


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_a_call_that_misses_a_result_ends_at_its_deadline(mode):
    session = Session(3, mode)
    start = session.now
    # The owner of a shard is absent.
    session.silent = {2}
    session.call(0)
    session.call(1)
    session.until(start + DEADLINE_S - JUST_S)
    assert session.done[0] == session.done[1] == {}
    session.until(start + DEADLINE_S + JUST_S)
    assert set(session.done[0]) == set(session.done[1]) == {0}


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_deadlines_count_from_the_opening_and_not_from_the_own_call(mode):
    session = Session(3, mode)
    session.silent = {2}
    session.call(1)
    session.collect()
    opened = session.now
    session.until(opened + DEADLINE_S / 4)
    session.call(0)
    session.until(opened + DEADLINE_S / 2 - JUST_S)
    assert session.expired(0) == 0
    session.until(opened + DEADLINE_S / 2 + JUST_S)
    assert session.expired(0) == 1
    session.until(opened + DEADLINE_S - JUST_S)
    assert session.done[0] == {}
    session.until(opened + DEADLINE_S + JUST_S)
    assert set(session.done[0]) == {0}


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_a_call_that_nobody_else_has_opened_has_all_its_time(mode):
    session = Session(3, mode)
    session.until(5.0)
    session.silent = {1, 2}
    start = session.now
    session.call(0)
    session.until(start + DEADLINE_S - JUST_S)
    assert session.done[0] == {}
    session.until(start + DEADLINE_S + JUST_S)
    assert set(session.done[0]) == {0}


@pytest.mark.parametrize("max_lag", [1, 2, 3])
def test_no_more_calls_than_max_lag_are_taken_ahead_of_a_program(max_lag):
    session = Session(2, "exact", max_lag=max_lag)
    shard_bytes = session.elements // 2 * 4
    for sequence in range(max_lag + 2):
        session.call(1, sequence)
        session.run(0.001)
    # It holds the contributions to its shard, for each open call.
    assert session.ranks[0].memory_bytes() == max_lag * shard_bytes
    assert session.done[1] == {}


def test_memory_for_calls_ahead_has_the_bound_that_was_given():
    shard_bytes = 600
    for early_bytes_max, held_bytes in (
        (shard_bytes, shard_bytes),
        (shard_bytes - 1, 0),
    ):
        session = Session(2, "exact", early_bytes_max=early_bytes_max)
        session.call(1)
        session.run(0.5)
        assert session.ranks[0].memory_bytes() == held_bytes
        session.call(0)
        session.run(2.0)
        np.testing.assert_array_equal(session.buckets[0, 0], 3)


def test_a_rank_that_lags_is_waited_for_as_long_as_was_promised():
    session = Session(2, "bounded", max_lag=1, peer_timeout_s=2.0)
    # The program of rank 1 makes no call; its endpoint answers.
    for sequence in range(3):
        session.call(0, sequence)
        session.run(DEADLINE_S + JUST_S)
    # It has accepted the first call, one ahead of its program, and not the second: this
    # is more than one call old when the fourth could begin, so that the third cannot
    # end.
    deadline = session.now - JUST_S
    assert set(session.done[0]) == {0, 1}
    session.until(deadline + 2.0 - JUST_S)
    assert set(session.done[0]) == {0, 1}
    session.until(deadline + 2.0 + JUST_S)
    assert set(session.done[0]) == {0, 1, 2}
    # No rank waits for it from here on.
    session.call(0, 3)
    session.run(DEADLINE_S + JUST_S)
    assert set(session.done[0]) == {0, 1, 2, 3}


def test_a_farewell_that_was_lost_is_said_again():
    session = Session(2, "exact")
    for rank in range(2):
        session.call(rank)
    session.run(0.5)
    session.ranks[0].leave(session.now, "its program has ended")
    session.collect()
    lost = [sent for sent in session.wire if sent[1][0] & 0xF == LEAVE]
    assert len(lost) == 1
    session.wire.remove(lost[0])
    session.run(0.5)
    assert session.ranks[0].finished()
    session.ranks[0] = None
    refused = session.submit(1, np.ones(3, np.float32), name="y")
    assert "rank 0 has left: its program has ended" in refused


class Lossy(Session):
    """Loses one datagram in ten."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.random = random.Random(3)

    def collect(self):
        before = len(self.wire)
        super().collect()
        kept = [sent for sent in self.wire[before:] if self.random.random() >= 0.1]
        self.wire[before:] = kept


@pytest.mark.parametrize("mode", ["agreed", "bounded"])
@pytest.mark.parametrize("network", [Session, Lossy])
@pytest.mark.parametrize("wire_format", ["bfloat16", "int8", "float4"])
def test_a_drain_brings_what_rounding_has_taken_of_contributions(
    wire_format, network, mode
):
    session = network(3, mode, elements=3000, wire_format=wire_format)
    rng = np.random.default_rng(1)
    # Each contribution has more digits than the format holds.
    given = rng.normal(size=(6, 3, session.elements)).astype(np.float32)
    total = np.zeros((3, session.elements))
    for sequence in range(7):
        drain = sequence == 6
        for rank in range(3):
            values = None if drain else given[sequence, rank]
            session.call(rank, sequence, drain=drain, values=values)
        session.run(1.0)
        for rank in range(3):
            assert session.done[rank][sequence].error == ""
            total[rank] += session.buckets[rank, sequence]
    for rank in range(3):
        np.testing.assert_allclose(total[rank], given.sum((0, 1)), atol=1e-4)


def test_errors_of_what_went_to_a_rank_that_has_left_are_not_lost():
    session = Session(3, "bounded", wire_format="bfloat16", peer_timeout_s=2.0)
    # The sums have no more digits than the format, once rank 0 has rounded.
    given = (
        np.random.default_rng(1).normal(size=(5, session.elements)).astype(np.float32)
    )
    total = np.zeros(session.elements)
    for sequence in range(5):
        for rank in range(3):
            session.call(rank, sequence, values=given[sequence] * (rank == 0))
        session.run(1.0)
        total += session.buckets[1, sequence]
    assert not np.allclose(total, given.sum(0), atol=1e-4)
    # No data is under way to it when it is removed.
    session.ranks[2].leave(session.now, "its program has ended")
    session.run(0.5)
    assert session.ranks[2].finished()
    session.silent = {2}
    zeros = np.zeros(session.elements, np.float32)
    for sequence in range(5, 9):
        for rank in range(2):
            session.call(rank, sequence, drain=sequence == 8, values=zeros)
        session.run(3.0)
        assert session.done[1][sequence].error == ""
        total += session.buckets[1, sequence]
    assert session.done[1][8].live == 2
    np.testing.assert_allclose(total, given.sum(0), atol=1e-4)


def test_a_call_waits_for_the_results_of_a_peer_whose_contribution_is_there():
    session = Session(2, "exact", peer_timeout_s=2.0)
    for rank in range(2):
        session.call(rank)
    # Rank 1 has all data of rank 0, and its own sums are lost.
    for _ in range(20):
        session.collect()
        for to, datagram in session.wire:
            if to == 1 or native.parse_header(datagram).kind != RESULT:
                session.ranks[to].handle_datagram(session.now, datagram)
        session.wire.clear()
        session.now += 0.001
        for rank in session.ranks:
            rank.handle_timeout(session.now)
    session.silent = {1}
    session.run(5.0)
    assert "rank 1 has been silent" in session.done[0][0].error
    assert "rank 0 waits for it in call 0" in session.done[0][0].error


def test_the_slowest_rank_is_the_last_one_where_nothing_is_missing():
    # Rank 0 owns the one element, and sends it last.
    session = Session(3, "exact", elements=1)
    for rank in range(3):
        session.call(rank)
    session.run(0.1)
    assert [session.done[rank][0].slowest for rank in (1, 2)] == [0, 0]


def test_what_a_peer_does_not_have_is_reported_as_in_flight():
    session = Session(3, "bounded")
    session.silent = {2}
    session.call(0)
    session.call(1)
    session.run(DEADLINE_S + JUST_S)
    for rank in range(2):
        assert set(session.done[rank]) == {0}
        # Contributions to one of two peers, and the sums for it.
        assert session.done[rank][0].in_flight == pytest.approx(0.5)


def test_what_a_peer_waits_for_is_not_kept_back_by_what_it_refuses():
    # No memory for calls ahead of a program. In whole datagrams: a short one would find
    # room where no other fits.
    session = Session(2, "bounded", elements=2 * 4 * 358, early_bytes_max=1)
    session.silent = {1}
    session.call(0)
    session.run(DEADLINE_S + JUST_S)
    # The data of rank 0 for this call is queued behind more refused data than a window
    # holds.
    assert set(session.done[0]) == {0}
    session.silent = set()
    large = np.ones(400_000, np.float32)
    assert session.submit(0, large, name="large", mode="exact", token=7) == ""
    session.call(1)
    session.run(0.01)
    for rank in range(2):
        session.call(rank, 1, drain=True)
    session.run(5.0)
    assert set(session.done[0]) == set(session.done[1]) == {0, 1}


def contributions_after_a_silence(calls: int) -> list[int]:
    """Returns the sequences that rank 1 receives, in the order of their arrival.

    It was silent in this many bounded calls of rank 0, from 0 on. Then both call
    `LARGE`, with more data than a window holds.
    """
    session = Session(2, "bounded", elements=100_000, max_lag=1)
    session.silent = {1}
    for sequence in range(calls):
        session.call(0, sequence)
        session.run(DEADLINE_S + JUST_S)
    assert set(session.done[0]) == {0}
    session.silent = set()
    for rank in range(2):
        array = np.ones(1_000_000, np.float32)
        session.submit(rank, array, name="large", mode="exact", sequence=LARGE)
    arrived = []
    while len(arrived) < 400:
        session.collect()
        if not session.wire:
            session.now = max(
                session.now, min(rank.poll_timeout() for rank in session.ranks)
            )
            for rank in session.ranks:
                rank.handle_timeout(session.now)
            continue
        to, datagram = session.wire.pop(0)
        header = native.parse_header(datagram)
        if (header.kind, to) == (CONTRIBUTION, 1):
            arrived.append(header.sequence)
        session.ranks[to].handle_datagram(session.now, datagram)
    return arrived


def test_what_no_call_waits_for_has_a_share_and_does_not_go_first():
    arrived = contributions_after_a_silence(calls=1)
    behind = sum(sequence != LARGE for sequence in arrived)
    assert len(arrived) / 16 < behind < len(arrived) / 3


def test_what_is_late_and_waited_for_goes_first():
    # Rank 0 is in its third call, and may be one ahead of rank 1.
    arrived = contributions_after_a_silence(calls=3)
    end = max(at for at, sequence in enumerate(arrived) if sequence == 0)
    # Other calls have every eighth turn; one that sends nothing counts, too.
    assert arrived[:end].count(LARGE) < end / 5
    assert LARGE in arrived[end:]


def test_ranks_and_calls_round_independently():
    ranks, calls = 6, 16
    session = Session(ranks, "exact", elements=3000, wire_format="bfloat16")
    values = np.random.default_rng(2).uniform(1, 2, session.elements).astype(np.float32)
    errors = []
    for sequence in range(calls):
        for rank in range(ranks):
            session.call(rank, sequence, values=values)
        session.run(1.0)
        errors.append(session.buckets[0, sequence] / ranks - values)
    # Values between 1 and 2 have steps of 2^-7, and errors of 0.41 steps, or 3.2e-3;
    # independent errors of six add up to that over the root of six. Their sum is
    # rounded with an error of 3.0e-3.
    together = np.sqrt(0.0032**2 + 0.0030**2)
    assert np.sqrt(np.mean(np.square(errors))) < 0.9 * together
    # The mean of all calls reduces them to a fourth of that.
    assert np.sqrt(np.mean(np.square(np.mean(errors, 0)))) < 0.4 * together


def test_a_lossy_call_waits_for_a_repair_while_it_measures():
    session = Session(2, "lossy", elements=4000)
    for rank in range(2):
        session.call(rank)
    session.collect()
    lost = next(
        sent
        for sent in session.wire
        if sent[0] == 0 and sent[1][0] & 0xF == CONTRIBUTION
    )
    session.wire.remove(lost)
    session.run(DEADLINE_S + JUST_S)
    for rank in range(2):
        done = session.done[rank][0]
        assert done.missing_contributions == done.missing_results == 0
