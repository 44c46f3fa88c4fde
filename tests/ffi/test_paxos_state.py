"""One decision of a view: the state of an acceptor, and of a coordinator.

A ballot is (round, coordinator); a proposal is (members, first calls).
"""

import optireduce_testing as native

NONE = (0, 0)


def coordinator(newest=()):
    """Rank 0 of five members, with a ballot of its own."""
    paxos = native.Paxos(0, 5)
    paxos.bid(list(newest))
    return paxos


def test_an_acceptor_takes_part_in_no_ballot_older_than_its_promise():
    paxos = native.Paxos(2, 5)
    paxos.promise((3, 1))
    assert not paxos.prepare((2, 4))
    assert not paxos.accept((3, 0), ([0, 1, 2], []))
    assert paxos.accepted == ([], [])
    assert paxos.accept((3, 1), ([0, 1, 2], [(7, 4)]))
    assert paxos.accepted == ([0, 1, 2], [(7, 4)])


def test_a_promise_alone_does_not_keep_calls_from_beginning():
    paxos = native.Paxos(2, 5)
    paxos.promise((1, 0))
    assert not paxos.frozen
    paxos.prepare((1, 0))
    assert paxos.frozen


def test_a_newer_ballot_of_another_rank_ends_the_own_one():
    paxos = coordinator()
    assert paxos.coordinates
    paxos.promise((1, 1))
    assert not paxos.coordinates
    assert paxos.voters() == []


def test_half_of_an_even_number_of_members_is_no_majority():
    paxos = native.Paxos(0, 4)
    paxos.bid([])
    paxos.add_vote(1, NONE, ([], []))
    assert not paxos.has_votes
    paxos.add_vote(2, NONE, ([], []))
    assert paxos.has_votes


def test_the_accepted_proposal_of_the_newest_ballot_is_found():
    paxos = coordinator()
    assert paxos.find_accepted() is None
    paxos.add_vote(1, (1, 3), ([0, 1, 2], [(1, 1)]))
    paxos.add_vote(2, (2, 1), ([0, 1, 3], [(1, 2)]))
    paxos.add_vote(3, NONE, ([], [(1, 9)]))
    assert paxos.find_accepted() == ([0, 1, 3], [(1, 2)])


def test_a_coordinator_votes_with_the_proposal_that_it_has_accepted():
    paxos = native.Paxos(0, 5)
    paxos.accept((1, 1), ([0, 1, 2], [(1, 5)]))
    paxos.bid([(1, 4)])
    assert paxos.ballot == (2, 0)
    assert paxos.find_accepted() == ([0, 1, 2], [(1, 5)])


def test_the_first_call_of_a_bucket_follows_the_newest_of_all_votes():
    paxos = coordinator([(1, 4), (2, 0)])
    paxos.add_vote(1, NONE, ([], [(1, 6)]))
    paxos.add_vote(2, NONE, ([], [(1, 5), (3, 2)]))
    assert paxos.firsts_after_votes() == [(1, 7), (2, 1), (3, 3)]


def test_no_number_follows_the_last_one():
    paxos = coordinator([(1, 2**32 - 1)])
    assert paxos.firsts_after_votes() == [(1, 2**32 - 1)]


def test_votes_that_come_after_the_proposal_are_ignored():
    paxos = coordinator()
    paxos.propose(([0, 1, 2], []))
    paxos.add_vote(4, NONE, ([], []))
    assert paxos.voters() == [0]


def test_a_proposal_is_decided_by_a_majority_of_acceptances():
    paxos = coordinator()
    paxos.propose(([0, 1, 2], []))
    assert [m for m in range(5) if paxos.has_answered(m)] == [0]
    paxos.add_acceptance(1)
    paxos.add_acceptance(1)
    assert not paxos.is_decided
    paxos.add_acceptance(2)
    assert paxos.is_decided
