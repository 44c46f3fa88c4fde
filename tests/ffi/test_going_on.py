"""Bounded calls that go on without a rank: which calls wait, and what they bring."""

import numpy as np
from endpoints import Net

from jax_optireduce import _testing

ELEMENTS = 300
DEADLINE_S = 0.1
# Chosen: of calls that are under way for longer than it takes to agree.
LONG_S = 6.0
MEMBERSHIP = 7
SETTLED_S = 8.0


class Session(Net):
    """Ranks that make bounded calls, each of values of its own."""

    def __init__(self, world_size, **options):
        super().__init__(world_size, peer_timeout_s=1.0, **options)
        self.buckets = {}
        self.given = {}
        self.kinds = set()

    def call(self, rank, sequence, *, drain=False, deadline_s=DEADLINE_S, members=None):
        value = 0 if drain else 1 + rank + 10 * sequence
        array = np.full(ELEMENTS, value, np.float32)
        self.buckets[rank, sequence] = array
        self.given[rank, sequence] = value
        members = list(range(len(self.ranks))) if members is None else members
        refused = self.ranks[rank].submit_in(
            *(self.now, "bounded", deadline_s, members, sequence, sequence, array),
            drain=drain,
        )
        assert refused == ""

    def collect(self):
        before = len(self.wire)
        super().collect()
        self.kinds |= {_testing.parse_header(sent)[0] for _, sent in self.wire[before:]}

    def exact(self, rank, token):
        self.submit(rank, np.ones(ELEMENTS, np.float32), name="exact", token=token)

    def lives(self, rank):
        """How many took part in the newest call that is over."""
        return self.ranks[rank].last_stats()["live"]

    def check_all_arrived(self, ranks, shards):
        """Each has what all have given, in the first shards.

        In that of the last rank, which is gone, what was on its way to it is lost.
        """
        given = sum(self.given.values())
        settled = ELEMENTS * shards // len(self.ranks)
        for rank in ranks:
            got = sum(b for (owner, _), b in self.buckets.items() if owner == rank)
            np.testing.assert_array_equal(got[:settled], given)


def test_a_call_waits_until_it_is_agreed_to_go_on_without_a_rank_that_has_left():
    net = Session(3)
    for rank in range(3):
        net.call(rank, 0)
    net.run(0.5)
    net.ranks[2].leave(net.now, "its program has ended")
    net.run(0.5)
    for rank in range(2):
        net.call(rank, 1)
    net.run(SETTLED_S)
    for rank in range(2):
        message, missing_contributions, missing_results, _ = net.done[rank][1]
        assert message == ""
        assert missing_contributions == missing_results == 0
        assert net.lives(rank) == 2


def test_a_call_that_waits_for_an_agreement_ends_after_the_call_timeout():
    net = Session(3, call_timeout_s=0.5)
    for rank in range(3):
        net.call(rank, 0)
    net.run(0.2)
    net.ranks[2].leave(net.now, "its program has ended")
    net.run(0.2)
    # Without rank 1 there is no majority, and it is not given up yet.
    net.silent = {1}
    net.call(0, 1)
    net.run(0.49)
    assert 1 not in net.done[0]
    net.now += 0.02
    net.ranks[0].handle_timeout(net.now)
    net.collect()
    message = net.done[0][1][0]
    assert "has waited 0.5 s (call_timeout_s) for the ranks to agree" in message


def test_a_rank_that_has_left_is_not_missed_by_calls_of_others():
    net = Session(3)
    for rank in range(3):
        net.exact(rank, 100)
    net.run(0.1)
    net.ranks[2].leave(net.now, "its program has ended")
    net.run(0.1)
    for rank in range(2):
        net.call(rank, 0, members=[0, 1])
    net.run(0.05)
    for rank in range(2):
        assert net.done[rank][0][:3] == ("", 0, 0)
    net.run(SETTLED_S)
    assert MEMBERSHIP not in net.kinds


def test_a_rank_that_was_silent_before_the_first_bounded_call_is_removed():
    net = Session(3)
    net.silent = {2}
    for rank in range(2):
        net.exact(rank, 100)
    net.run(3.0)
    for rank in range(2):
        assert "rank 2 has been silent" in net.done[rank][100][0]
    for sequence in range(5):
        for rank in range(2):
            net.call(rank, sequence)
        net.run(2.0)
    assert [net.lives(rank) for rank in range(2)] == [2, 2]
    assert MEMBERSHIP in net.kinds


def with_a_call_under_way() -> Session:
    """Four ranks, of which three have agreed to go on, with a call of four to end."""
    net = Session(4)
    for rank in range(4):
        net.call(rank, 0, deadline_s=LONG_S)
    net.run(0.5)
    net.silent = {3}
    for rank in range(3):
        net.call(rank, 1, deadline_s=LONG_S)
    net.run(LONG_S / 2)
    assert [sorted(done) for done in net.done] == [[0]] * 4
    return net


def test_a_settlement_waits_for_calls_that_are_under_way():
    net = with_a_call_under_way()
    for sequence in (2, 3, 4):
        for rank in range(3):
            net.call(rank, sequence, deadline_s=LONG_S, drain=sequence == 4)
        net.run(SETTLED_S)
    assert [net.lives(rank) for rank in range(3)] == [3] * 3
    net.check_all_arrived(range(3), shards=3)


def test_a_call_does_not_overtake_a_drain_that_waits():
    net = with_a_call_under_way()
    for sequence in (2, 3):
        for rank in range(3):
            net.call(rank, sequence, deadline_s=LONG_S, drain=sequence == 2)
    net.run(SETTLED_S)
    assert [list(done) for done in net.done[:3]] == [[0, 1, 2, 3]] * 3
    assert [net.lives(rank) for rank in range(3)] == [3] * 3
    net.check_all_arrived(range(3), shards=3)


def test_what_a_program_jumps_over_is_settled():
    net = Session(4)
    for rank in range(4):
        net.call(rank, 0)
    net.run(0.5)
    net.silent = {3}
    # Rank 1 jumps over this one.
    for rank in (0, 2):
        net.call(rank, 1)
    net.run(5.0)
    for sequence in (2, 3, 4):
        for rank in range(3):
            net.call(rank, sequence, drain=sequence == 4)
        net.run(SETTLED_S)
    assert [net.lives(rank) for rank in range(3)] == [3] * 3
    net.check_all_arrived(range(3), shards=3)


def test_a_rank_without_a_majority_goes_on_as_soon_as_it_hears_the_others():
    net = Session(3)
    for rank in range(3):
        net.call(rank, 0)
    net.run(0.5)
    # The others stand still, and miss nobody.
    net.silent = {1, 2}
    net.call(0, 1)
    net.run(2.0)
    refused = net.ranks[0].submit_in(
        *(net.now, "bounded", DEADLINE_S, [0, 1, 2], 2, 2, net.buckets[0, 0])
    )
    assert "only 1 of the 3 ranks" in refused
    net.run(2.0)
    net.silent = set()
    for rank in (1, 2):
        net.call(rank, 1)
    net.run(1.0)
    for rank in range(3):
        net.call(rank, 3)
    net.run(1.0)
    for rank in range(3):
        assert net.done[rank][3][0] == ""
        assert net.lives(rank) == 3
