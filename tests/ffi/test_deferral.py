"""Bounded calls at different times: merged, skipped, drained, consecutive.

Data missing in one call arrives with a later one. Acknowledgements may be lost.
"""

import numpy as np
import pytest
from session import Session

DEADLINE_S = 0.1  # both stages together
JUST_S = 1e-6
CONTRIBUTION, RESULT, ACKNOWLEDGEMENT = 1, 2, 3
SETTLED_S = 2.0


class Calls(Session):
    """Sums the inputs and outputs of each rank; loses what `loses` selects."""

    def __init__(self, world_size, mode="bounded", **options):
        super().__init__(world_size, mode, **options)
        self.loses = lambda *_: False
        # Held data is never released.
        self.holds = lambda header, _: self.loses(
            header.kind, header.source, header.sequence
        )

    def given(self):
        """The sum of all contributions."""
        return sum(1 + rank + 10 * call for rank, call in self.buckets)

    def got(self, rank):
        return sum(
            bucket for (owner, _), bucket in self.buckets.items() if owner == rank
        )

    def drain_all(self, sequence):
        """Checks that the drained totals equal the contributions."""
        given = self.given()
        for rank in range(len(self.ranks)):
            self.call(rank, sequence, drain=True)
        self.run(SETTLED_S)
        for rank in range(len(self.ranks)):
            assert self.done[rank][sequence].error == ""
            np.testing.assert_array_equal(self.got(rank), given)


def missing_results(session: Calls, rank: int, sequence: int) -> float:
    return session.done[rank][sequence].missing_results


# ---- Drains.


def test_a_call_that_a_peer_makes_as_a_drain_waits_for_all_of_it():
    session = Calls(2, elements=3000)
    for rank in range(2):
        session.call(rank)
    session.run(0.01)
    session.call(0, 1)
    first = []

    def loses_all_but_the_first(kind, source, call):
        later = kind == CONTRIBUTION and source == 1 and bool(first)
        first.extend([call] if kind == CONTRIBUTION and source == 1 else [])
        return later

    session.loses = loses_all_but_the_first
    session.call(1, 1, drain=True)
    session.run(2 * DEADLINE_S)
    assert 1 not in session.done[0]
    session.loses = lambda *_: False
    session.run(SETTLED_S)
    for rank in range(2):
        np.testing.assert_array_equal(session.got(rank), 1 + 2 + 11)


def test_a_call_that_all_others_have_drained_is_over_at_once():
    session = Calls(3)
    for rank in range(3):
        session.call(rank)
    session.run(0.01)
    for rank in (0, 1):
        session.call(rank, 2, drain=True)
    session.run(0.01)
    session.call(2, 1)
    session.collect()
    assert 1 in session.done[2]
    session.call(2, 2, drain=True)
    session.run(SETTLED_S)
    given = 1 + 2 + 3 + (1 + 2 + 10)
    for rank in range(3):
        np.testing.assert_array_equal(session.got(rank), given)


def test_a_call_goes_on_that_only_some_have_drained():
    session = Calls(3)
    for rank in range(3):
        session.call(rank)
    session.run(0.01)
    session.call(0, 2, drain=True)
    session.run(0.01)
    session.call(2, 1)
    session.run(0.01)
    assert 1 not in session.done[2]
    session.call(1, 1)
    session.run(DEADLINE_S)
    # Their own shards have both contributions.
    for rank in (1, 2):
        assert missing_results(session, rank, 1) == pytest.approx(1 / 3)
        assert np.count_nonzero(session.buckets[rank, 1] == 12 + 13) == 200
    for rank in (1, 2):
        session.call(rank, 2, drain=True)
    session.run(SETTLED_S)
    for rank in range(3):
        np.testing.assert_array_equal(session.got(rank), 1 + 2 + 3 + 12 + 13)


# ---- The end of a rank.


def test_what_a_rank_has_sent_before_it_left_counts_in_a_call_made_later():
    session = Calls(2)
    for rank in range(2):
        session.call(rank)
    session.run(0.01)
    # Its deadline has passed when the data of its last call arrives.
    session.holds = lambda header, _: (header.source, header.sequence) == (1, 1)
    session.call(1, 1)
    session.run(2 * DEADLINE_S)
    session.ranks[1].leave(session.now, "its program has ended")
    session.release()
    session.run(2 * DEADLINE_S)
    assert session.ranks[1].finished()
    session.call(0, 1)
    session.run(2 * DEADLINE_S)
    assert session.done[0][1].error == ""
    # Both stages ended before this rank made the call.
    np.testing.assert_array_equal(session.buckets[0, 1], 12)


def test_what_a_rank_has_sent_before_it_left_counts():
    session = Calls(2, elements=3000)
    passed = []

    def loses(kind, source, call):
        if (kind, source) != (CONTRIBUTION, 1):
            return False
        passed.append(call)
        return len(passed) > 1

    session.loses = loses
    for rank in range(2):
        session.call(rank)
    session.run(0.005)
    session.ranks[1].leave(session.now, "its program has ended")
    session.run(0.01)
    assert session.ranks[1].finished()
    session.run(DEADLINE_S)
    done = session.done[0][0]
    assert done.error == ""
    assert 0 < done.missing_contributions < 0.5
    assert done.missing_results == 0


# ---- Folded calls.


def test_results_of_a_folded_call_that_are_under_way_are_not_taken_for_complete():
    session = Calls(3)
    # The sums of rank 0 in the first call do not arrive.
    session.loses = lambda kind, source, call: (kind, source, call) == (RESULT, 0, 0)
    for sequence in range(3):
        session.call(0, sequence)
        session.run(2 * DEADLINE_S)
    for sequence in range(4):
        session.call(1, sequence)
    session.call(0, 3)
    session.run(2 * DEADLINE_S)
    session.loses = lambda *_: False
    session.drain_all(4)


# ---- Consecutive calls.


def test_results_of_a_call_under_way_are_not_taken_for_complete():
    session = Calls(2)
    for rank in range(2):
        session.call(rank)
    session.run(0.01)
    session.loses = lambda kind, source, call: (kind, source, call) == (RESULT, 1, 1)
    for sequence in (1, 2):
        for rank in range(2):
            session.call(rank, sequence)
    session.run(2 * DEADLINE_S)
    session.loses = lambda *_: False
    session.drain_all(3)


def test_what_a_program_jumps_over_comes_with_its_next_calls():
    session = Calls(2)
    for rank in range(2):
        session.call(rank)
    session.run(0.01)
    session.call(0, 1)
    session.run(2 * DEADLINE_S)
    for sequence in (2, 3):
        for rank in range(2):
            session.call(rank, sequence)
        session.run(2 * DEADLINE_S)
    for rank in range(2):
        np.testing.assert_array_equal(session.got(rank), session.given())
    memory = session.ranks[1].memory_bytes()
    assert memory == session.ranks[0].memory_bytes()


@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded"])
def test_calls_go_on_although_every_acknowledgement_is_lost(mode):
    session = Calls(2, mode, max_lag=1)
    session.grow_windows()
    session.loses = lambda kind, *_: kind == ACKNOWLEDGEMENT
    most = 0
    for sequence in range(8):
        for rank in range(2):
            session.call(rank, sequence)
        # Without time between them: each call returns the data of the previous one.
        session.run(0.0)
        assert [len(done) for done in session.done] == [sequence + 1] * 2
        assert all(
            np.all(session.buckets[r, sequence] == 3 + 20 * sequence) for r in (0, 1)
        )
        most = max(most, *(rank.memory_bytes() for rank in session.ranks))
    # The sums of the last calls, of half a bucket each.
    assert most <= 3 * session.elements // 2 * 4


def test_calls_that_wait_for_a_window_go_on_with_the_results_of_an_earlier_one():
    session = Calls(2, "agreed", max_lag=1)
    session.grow_windows()
    session.loses = lambda kind, *_: kind == ACKNOWLEDGEMENT
    for sequence in range(4):
        for rank in range(2):
            session.call(rank, sequence)
    session.run(0.0)
    assert [sorted(done) for done in session.done] == [[0, 1, 2, 3]] * 2


def test_a_rank_that_has_caught_up_is_waited_for_again():
    session = Calls(2, max_lag=1, peer_timeout_s=2.0)
    for sequence in range(3):
        session.call(0, sequence)
        session.run(DEADLINE_S + JUST_S)
    session.run(2.0)
    # The wait for it was in vain.
    assert sorted(session.done[0]) == [0, 1, 2]
    for sequence in range(4):
        session.call(1, sequence)
    session.call(0, 3)
    session.run(SETTLED_S)
    for sequence in (4, 5):
        for rank in range(2):
            session.call(rank, sequence)
        session.run(DEADLINE_S)
    for sequence in (6, 7, 8):
        session.call(0, sequence)
        session.run(DEADLINE_S + JUST_S)
    assert 7 in session.done[0]
    assert 8 not in session.done[0]
