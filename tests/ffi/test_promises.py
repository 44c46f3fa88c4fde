"""What endpoints promise is kept to the full.

No stage ends early, no rank is left early, no more than was said is taken ahead, and a
farewell that was lost is said again.

Virtual time, on a perfect network whose datagrams take none.
"""

import random

import numpy as np
import pytest
from endpoints import DEADLINE_S, JUST_S, Modes

from jax_optireduce import _testing

CONTRIBUTION = 1
RESULT = 2
LEAVE = 6
LARGE = 9


@pytest.mark.parametrize("mode", ["agreed", "bounded", "lossy"])
def test_a_first_stage_that_misses_a_contribution_closes_at_its_deadline(mode):
    net = Modes(3, mode)
    start = net.now
    net.call(0)
    net.call(1)
    net.until(start + DEADLINE_S / 2 - JUST_S)
    assert net.expired(0) == net.expired(1) == 0
    net.until(start + DEADLINE_S / 2 + JUST_S)
    assert net.expired(0) == net.expired(1) == 1


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_a_call_that_misses_a_result_ends_at_its_deadline(mode):
    net = Modes(3, mode)
    start = net.now
    # The owner of a shard is not there.
    net.silent = {2}
    net.call(0)
    net.call(1)
    net.until(start + DEADLINE_S - JUST_S)
    assert net.done[0] == net.done[1] == {}
    net.until(start + DEADLINE_S + JUST_S)
    assert set(net.done[0]) == set(net.done[1]) == {0}


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_deadlines_count_from_the_opening_and_not_from_the_own_call(mode):
    net = Modes(3, mode)
    net.silent = {2}
    net.call(1)
    net.collect()
    opened = net.now
    net.until(opened + DEADLINE_S / 4)
    net.call(0)
    net.until(opened + DEADLINE_S / 2 - JUST_S)
    assert net.expired(0) == 0
    net.until(opened + DEADLINE_S / 2 + JUST_S)
    assert net.expired(0) == 1
    net.until(opened + DEADLINE_S - JUST_S)
    assert net.done[0] == {}
    net.until(opened + DEADLINE_S + JUST_S)
    assert set(net.done[0]) == {0}


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_a_call_that_nobody_else_has_opened_has_all_its_time(mode):
    net = Modes(3, mode)
    net.until(5.0)
    net.silent = {1, 2}
    start = net.now
    net.call(0)
    net.until(start + DEADLINE_S - JUST_S)
    assert net.done[0] == {}
    net.until(start + DEADLINE_S + JUST_S)
    assert set(net.done[0]) == {0}


@pytest.mark.parametrize("max_lag", [1, 2, 3])
def test_no_more_calls_than_max_lag_are_taken_ahead_of_a_program(max_lag):
    net = Modes(2, "exact", max_lag=max_lag)
    shard_bytes = net.elements // 2 * 4
    for sequence in range(max_lag + 2):
        net.call(1, sequence)
        net.run(0.001)
    # Contributions to the own shard, of each call that was opened.
    assert net.ranks[0].memory_bytes() == max_lag * shard_bytes
    assert net.done[1] == {}


def test_memory_for_calls_ahead_has_the_bound_that_was_given():
    shard_bytes = 600
    for early_bytes_max, held_bytes in (
        (shard_bytes, shard_bytes),
        (shard_bytes - 1, 0),
    ):
        net = Modes(2, "exact", early_bytes_max=early_bytes_max)
        net.call(1)
        net.run(0.5)
        assert net.ranks[0].memory_bytes() == held_bytes
        net.call(0)
        net.run(2.0)
        np.testing.assert_array_equal(net.buckets[0, 0], 3)


def test_a_rank_that_lags_is_waited_for_as_long_as_was_promised():
    net = Modes(2, max_lag=1, peer_timeout_s=2.0)
    # The program of rank 1 makes no call, its endpoint answers.
    for sequence in range(3):
        net.call(0, sequence)
        net.run(DEADLINE_S + JUST_S)
    # It has taken the first call, one ahead of its program, and not the second: this is
    # more than one call old when the fourth could begin, so that the third cannot end.
    deadline = net.now - JUST_S
    assert set(net.done[0]) == {0, 1}
    net.until(deadline + 2.0 - JUST_S)
    assert set(net.done[0]) == {0, 1}
    net.until(deadline + 2.0 + JUST_S)
    assert set(net.done[0]) == {0, 1, 2}
    # Nobody waits for it any more.
    net.call(0, 3)
    net.run(DEADLINE_S + JUST_S)
    assert set(net.done[0]) == {0, 1, 2, 3}


def test_a_farewell_that_was_lost_is_said_again():
    net = Modes(2, "exact")
    for rank in range(2):
        net.call(rank)
    net.run(0.5)
    net.ranks[0].leave(net.now, "its program has ended")
    net.collect()
    lost = [sent for sent in net.wire if sent[1][0] & 0xF == LEAVE]
    assert len(lost) == 1
    net.wire.remove(lost[0])
    net.run(0.5)
    assert net.ranks[0].finished()
    net.ranks[0] = None
    refused = net.ranks[1].submit(
        *(net.now, "x", "x", 1, False, 0.1, [0, 1], 0, 1, np.ones(3, np.float32))
    )
    assert "rank 0 has left: its program has ended" in refused


class Lossy(Modes):
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
@pytest.mark.parametrize("network", [Modes, Lossy])
@pytest.mark.parametrize("wire_format", ["bfloat16", "int8"])
def test_a_drain_brings_what_rounding_has_taken_of_contributions(
    wire_format, network, mode
):
    net = network(3, mode, elements=3000, wire_format=wire_format)
    rng = np.random.default_rng(1)
    # More digits than the format holds, in each contribution.
    given = rng.normal(size=(6, 3, net.elements)).astype(np.float32)
    total = np.zeros((3, net.elements))
    for sequence in range(7):
        drain = sequence == 6
        for rank in range(3):
            values = None if drain else given[sequence, rank]
            net.call(rank, sequence, drain=drain, values=values)
        net.run(1.0)
        for rank in range(3):
            assert net.done[rank][sequence][0] == ""
            total[rank] += net.buckets[rank, sequence]
    for rank in range(3):
        np.testing.assert_allclose(total[rank], given.sum((0, 1)), atol=1e-4)


def test_errors_of_what_went_to_a_rank_that_has_left_are_not_lost():
    net = Modes(3, "bounded", wire_format="bfloat16", peer_timeout_s=2.0)
    # The sums have no more digits than the format, once rank 0 has rounded.
    given = np.random.default_rng(1).normal(size=(5, net.elements)).astype(np.float32)
    total = np.zeros(net.elements)
    for sequence in range(5):
        for rank in range(3):
            net.call(rank, sequence, values=given[sequence] * (rank == 0))
        net.run(1.0)
        total += net.buckets[1, sequence]
    assert not np.allclose(total, given.sum(0), atol=1e-4)
    # Nothing is on its way to it when it is removed.
    net.ranks[2].leave(net.now, "its program has ended")
    net.run(0.5)
    assert net.ranks[2].finished()
    net.silent = {2}
    zeros = np.zeros(net.elements, np.float32)
    for sequence in range(5, 9):
        for rank in range(2):
            net.call(rank, sequence, drain=sequence == 8, values=zeros)
        net.run(3.0)
        assert net.done[1][sequence][0] == ""
        total += net.buckets[1, sequence]
    assert net.ranks[1].last_stats()["live"] == 2
    np.testing.assert_allclose(total, given.sum(0), atol=1e-4)


def test_a_call_waits_for_the_results_of_a_peer_whose_contribution_is_there():
    net = Modes(2, "exact", peer_timeout_s=2.0)
    for rank in range(2):
        net.call(rank)
    # Rank 1 has all of rank 0, and its sums are lost.
    for _ in range(20):
        net.collect()
        for to, datagram in net.wire:
            if to == 1 or _testing.parse_header(datagram)[0] != RESULT:
                net.ranks[to].handle_datagram(net.now, datagram)
        net.wire.clear()
        net.now += 0.001
        for rank in net.ranks:
            rank.handle_timeout(net.now)
    net.silent = {1}
    net.run(5.0)
    assert "rank 1 has been silent" in net.done[0][0][0]
    assert "rank 0 waits for it in call 0" in net.done[0][0][0]


def test_the_slowest_rank_is_the_last_one_where_nothing_is_missing():
    # Rank 0 owns the one element, and sends it last.
    net = Modes(3, "exact", elements=1)
    for rank in range(3):
        net.call(rank)
    net.run(0.1)
    assert [net.done[rank][0][-1] for rank in (1, 2)] == [0, 0]


def test_what_a_peer_does_not_have_is_reported_as_in_flight():
    net = Modes(3)
    net.silent = {2}
    net.call(0)
    net.call(1)
    net.run(DEADLINE_S + JUST_S)
    for rank in range(2):
        assert set(net.done[rank]) == {0}
        # Contributions to one of two peers, and the sums for it.
        assert net.ranks[rank].last_stats()["in_flight"] == pytest.approx(0.5)


def test_what_a_peer_waits_for_is_not_kept_back_by_what_it_refuses():
    # No memory for what is ahead of a program.
    # In whole datagrams: a short one would find room where no other fits.
    net = Modes(2, elements=2 * 4 * 358, early_bytes_max=1)
    net.silent = {1}
    net.call(0)
    net.run(DEADLINE_S + JUST_S)
    # What rank 0 has for this call goes behind more refused data than a window holds.
    assert set(net.done[0]) == {0}
    net.silent = set()
    assert net.submit(0, np.ones(400_000, np.float32), name="large", token=7) == ""
    net.call(1)
    net.run(0.01)
    for rank in range(2):
        net.call(rank, 1, drain=True)
    net.run(5.0)
    assert set(net.done[0]) == set(net.done[1]) == {0, 1}


def contributions_after_a_silence(calls: int) -> list[int]:
    """Returns the sequences of what rank 1 gets, in the order of its arrival.

    It was silent in so many bounded calls of rank 0, from 0 on. Then both call `LARGE`,
    of more than a window holds.
    """
    net = Modes(2, elements=100_000, max_lag=1)
    net.silent = {1}
    for sequence in range(calls):
        net.call(0, sequence)
        net.run(DEADLINE_S + JUST_S)
    assert set(net.done[0]) == {0}
    net.silent = set()
    for rank in range(2):
        array = np.ones(1_000_000, np.float32)
        net.submit(rank, array, name="large", sequence=LARGE, token=LARGE)
    arrived = []
    while len(arrived) < 400:
        net.collect()
        if not net.wire:
            net.now = max(net.now, min(rank.poll_timeout() for rank in net.ranks))
            for rank in net.ranks:
                rank.handle_timeout(net.now)
            continue
        to, datagram = net.wire.pop(0)
        kind, *_, sequence = _testing.parse_header(datagram)[:6]
        if (kind, to) == (CONTRIBUTION, 1):
            arrived.append(sequence)
        net.ranks[to].handle_datagram(net.now, datagram)
    return arrived


def test_what_no_call_waits_for_has_a_share_and_does_not_go_first():
    arrived = contributions_after_a_silence(calls=1)
    behind = sum(sequence != LARGE for sequence in arrived)
    assert len(arrived) / 16 < behind < len(arrived) / 3


def test_what_is_late_and_waited_for_goes_first():
    # Rank 0 is in its third call, and may be one ahead of rank 1.
    arrived = contributions_after_a_silence(calls=3)
    assert LARGE not in arrived[:100]
    assert LARGE in arrived


def test_ranks_and_calls_round_independently():
    ranks, calls = 6, 16
    net = Modes(ranks, "exact", elements=3000, wire_format="bfloat16")
    values = np.random.default_rng(2).uniform(1, 2, net.elements).astype(np.float32)
    errors = []
    for sequence in range(calls):
        for rank in range(ranks):
            net.call(rank, sequence, values=values)
        net.run(1.0)
        errors.append(net.buckets[0, sequence] / ranks - values)
    # Values between 1 and 2 have steps of 2^-7, and errors of 0.41 of that, or 3.2e-3;
    # those of six over the root of six, if independent. Their sum is rounded by 3.0e-3.
    together = np.sqrt(0.0032**2 + 0.0030**2)
    assert np.sqrt(np.mean(np.square(errors))) < 0.9 * together
    # And the mean of all calls by a fourth of that.
    assert np.sqrt(np.mean(np.square(np.mean(errors, 0)))) < 0.4 * together


def test_a_lossy_call_waits_for_a_repair_while_it_measures():
    net = Modes(2, "lossy", elements=4000)
    for rank in range(2):
        net.call(rank)
    net.collect()
    lost = next(
        sent for sent in net.wire if sent[0] == 0 and sent[1][0] & 0xF == CONTRIBUTION
    )
    net.wire.remove(lost)
    net.run(DEADLINE_S + JUST_S)
    for rank in range(2):
        _, missing_contributions, missing_results, _ = net.done[rank][0]
        assert missing_contributions == missing_results == 0
