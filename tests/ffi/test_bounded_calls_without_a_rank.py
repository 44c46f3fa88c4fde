"""Bounded calls that continue without a rank: their waits and their results."""

import numpy as np
from session import SECRET, Session

import optireduce_testing as native

DEADLINE_S = 0.1
# Chosen: for calls that are open for longer than an agreement takes.
LONG_S = 6.0
MEMBERSHIP = 7
SETTLED_S = 8.0


class Ranks(Session):
    """Ranks that make bounded calls, with different values for each call."""

    def __init__(self, world_size, **options):
        super().__init__(world_size, "bounded", peer_timeout_s=1.0, **options)
        self.given = {}
        self.kinds = set()

    def call(self, rank, sequence, *, drain=False, deadline_s=DEADLINE_S, members=None):
        value = 0 if drain else 1 + rank + 10 * sequence
        array = np.full(self.elements, value, np.float32)
        self.buckets[rank, sequence] = array
        self.given[rank, sequence] = value
        refused = self.ranks[rank].submit(
            self.now,
            self.of(members, deadline_s),
            array,
            sequence,
            token=sequence,
            drain=drain,
        )
        assert refused == ""

    def of(self, members=None, deadline_s=DEADLINE_S):
        """The collective of `call`."""
        collective = self.collective(self.elements)
        collective.deadline_s = deadline_s
        if members is not None:
            collective.members = members
        return collective

    def collect(self):
        before = len(self.wire)
        super().collect()
        self.kinds |= {native.parse_header(sent).kind for _, sent in self.wire[before:]}

    def exact(self, rank, token):
        array = np.ones(self.elements, np.float32)
        self.submit(rank, array, name="exact", mode="exact", token=token)

    def lives(self, rank):
        """The number of participants in the newest ended call."""
        return next(reversed(self.done[rank].values())).live

    def check_all_arrived(self, ranks, shards):
        """Checks that each rank has the sum of all contributions in the first shards.

        The shard of the last rank, which is gone, lacks the data that was under way to
        it.
        """
        given = sum(self.given.values())
        settled = self.elements * shards // len(self.ranks)
        for rank in ranks:
            got = sum(b for (owner, _), b in self.buckets.items() if owner == rank)
            np.testing.assert_array_equal(got[:settled], given)


def test_a_call_waits_until_it_is_agreed_to_go_on_without_a_rank_that_has_left():
    session = Ranks(3)
    for rank in range(3):
        session.call(rank, 0)
    session.run(0.5)
    session.ranks[2].leave(session.now, "its program has ended")
    session.run(0.5)
    for rank in range(2):
        session.call(rank, 1)
    session.run(SETTLED_S)
    for rank in range(2):
        done = session.done[rank][1]
        assert done.error == ""
        assert done.missing_contributions == done.missing_results == 0
        assert session.lives(rank) == 2


def test_a_call_that_waits_for_an_agreement_ends_after_the_call_timeout():
    session = Ranks(3, call_timeout_s=0.5)
    for rank in range(3):
        session.call(rank, 0)
    session.run(0.2)
    session.ranks[2].leave(session.now, "its program has ended")
    session.run(0.2)
    # Without rank 1 there is no majority, and it is not given up yet.
    session.silent = {1}
    session.call(0, 1)
    session.run(0.49)
    assert 1 not in session.done[0]
    session.now += 0.02
    session.ranks[0].handle_timeout(session.now)
    session.collect()
    message = session.done[0][1].error
    assert "has waited 0.5 s (call_timeout_s) for the ranks to agree" in message


def test_a_rank_that_has_left_is_not_missed_by_calls_of_others():
    session = Ranks(3)
    for rank in range(3):
        session.exact(rank, 100)
    session.run(0.1)
    session.ranks[2].leave(session.now, "its program has ended")
    session.run(0.1)
    for rank in range(2):
        session.call(rank, 0, members=[0, 1])
    session.run(0.05)
    for rank in range(2):
        done = session.done[rank][0]
        assert done.error == ""
        assert done.missing_contributions == done.missing_results == 0
    session.run(SETTLED_S)
    assert MEMBERSHIP not in session.kinds


def test_a_rank_that_was_silent_before_the_first_bounded_call_is_removed():
    session = Ranks(3)
    session.silent = {2}
    for rank in range(2):
        session.exact(rank, 100)
    session.run(3.0)
    for rank in range(2):
        assert "rank 2 has been silent" in session.done[rank][100].error
    for sequence in range(5):
        for rank in range(2):
            session.call(rank, sequence)
        session.run(2.0)
    assert [session.lives(rank) for rank in range(2)] == [2, 2]
    assert MEMBERSHIP in session.kinds


def with_a_call_under_way() -> Ranks:
    """Four ranks, three of which have agreed to continue, with an open call of four."""
    session = Ranks(4)
    for rank in range(4):
        session.call(rank, 0, deadline_s=LONG_S)
    session.run(0.5)
    session.silent = {3}
    for rank in range(3):
        session.call(rank, 1, deadline_s=LONG_S)
    session.run(LONG_S / 2)
    assert [sorted(done) for done in session.done] == [[0]] * 4
    return session


def test_a_drain_waits_for_calls_that_are_under_way():
    session = with_a_call_under_way()
    for sequence in (2, 3, 4):
        for rank in range(3):
            session.call(rank, sequence, deadline_s=LONG_S, drain=sequence == 4)
        session.run(SETTLED_S)
    assert [session.lives(rank) for rank in range(3)] == [3] * 3
    session.check_all_arrived(range(3), shards=3)


def test_a_call_does_not_overtake_a_drain_that_waits():
    session = with_a_call_under_way()
    for sequence in (2, 3):
        for rank in range(3):
            session.call(rank, sequence, deadline_s=LONG_S, drain=sequence == 2)
    session.run(SETTLED_S)
    assert [list(done) for done in session.done[:3]] == [[0, 1, 2, 3]] * 3
    assert [session.lives(rank) for rank in range(3)] == [3] * 3
    session.check_all_arrived(range(3), shards=3)


def test_what_a_program_jumps_over_is_drained():
    session = Ranks(4)
    for rank in range(4):
        session.call(rank, 0)
    session.run(0.5)
    session.silent = {3}
    # Rank 1 skips this call.
    for rank in (0, 2):
        session.call(rank, 1)
    session.run(5.0)
    for sequence in (2, 3, 4):
        for rank in range(3):
            session.call(rank, sequence, drain=sequence == 4)
        session.run(SETTLED_S)
    assert [session.lives(rank) for rank in range(3)] == [3] * 3
    session.check_all_arrived(range(3), shards=3)


def test_a_rank_without_a_majority_goes_on_as_soon_as_it_hears_the_others():
    session = Ranks(3)
    for rank in range(3):
        session.call(rank, 0)
    session.run(0.5)
    # The others are frozen, and suspect no rank.
    session.silent = {1, 2}
    session.call(0, 1)
    session.run(2.0)
    refused = session.submit(0, session.buckets[0, 0], sequence=2)
    assert "only 1 of the 3 ranks" in refused
    session.run(2.0)
    session.silent = set()
    for rank in (1, 2):
        session.call(rank, 1)
    session.run(1.0)
    for rank in range(3):
        session.call(rank, 3)
    session.run(1.0)
    for rank in range(3):
        assert session.done[rank][3].error == ""
        assert session.lives(rank) == 3


class Present(Ranks):
    """A session of five places, of which the last two are empty from the start."""

    def __init__(self):
        super().__init__(5)
        self.ranks[:3] = [
            native.Endpoint(rank, 5, SECRET, peer_timeout_s=1.0, absent=[3, 4])
            for rank in range(3)
        ]
        self.silent = {3, 4}


def test_an_empty_place_is_not_missed():
    session = Present()
    for sequence in range(3):
        for rank in range(3):
            session.call(rank, sequence)
        session.run(0.05)
        for rank in range(3):
            assert session.done[rank][sequence].missing_contributions == 0
            assert session.lives(rank) == 3
            assert session.buckets[rank, sequence][0] == sum(
                session.given[peer, sequence] for peer in range(3)
            )
    assert MEMBERSHIP not in session.kinds


def test_a_late_first_call_beside_empty_places_is_the_next_one_of_the_others():
    session = Present()
    for sequence in range(5):
        for rank in range(2):
            session.call(rank, sequence)
        session.run(SETTLED_S)
    session.call(2, 0)
    session.run(0.01)
    for rank in range(2):
        session.call(rank, 5)
    session.run(0.05)
    done = session.done[2][0]
    assert (done.number, done.skipped, done.passed) == (5, 5, False)
    assert session.done[0][5].missing_contributions == 0


def test_a_call_that_waits_for_an_empty_place_is_an_error():
    session = Present()
    refused = session.submit(0, np.ones(300, np.float32), name="exact", mode="exact")
    assert "rank 3 was removed from the session" in refused


def test_a_member_beside_empty_places_can_be_removed():
    session = Present()
    for rank in range(3):
        session.call(rank, 0)
    session.run(0.05)
    session.silent.add(2)
    for sequence in range(1, 4):
        for rank in range(2):
            session.call(rank, sequence)
        session.run(SETTLED_S)
    for rank in range(2):
        assert session.done[rank][3].error == ""
        assert session.lives(rank) == 2
