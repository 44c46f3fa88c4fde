"""Messages and decisions of one rank of an agreement.

Each rule here prevents two different decisions of a view. Times are in seconds of
virtual time.
"""

from dataclasses import dataclass

import pytest

import optireduce_testing as native

TIMEOUT = 1.0
STEP = 0.05
LANE = 0
STATUS, PREPARE, VOTE, PROPOSAL, ACCEPTED, DECISION = range(1, 7)
NONE = (0, 0)
# Source: kMembershipCallsMax of membership_message.h.
CALLS_PER_PART = 43


@dataclass
class Said:
    """A message of the rank."""

    to: int
    kind: int
    ballot: tuple
    accepted: tuple
    part: int
    ranks: list


class OneRank:
    """One rank of five; the test sends the messages of the others."""

    def __init__(self, rank):
        self.membership = native.Membership(rank, 5, TIMEOUT)
        self.now = 1.0

    def hears(
        self, sender, kind, ballot=NONE, *, view=0, part=(0, 1), ranks=(), calls=()
    ):
        message = native.encode_membership(
            native.MembershipMessage(
                kind=kind,
                view=view,
                ballot=ballot,
                part=part[0],
                parts=part[1],
                ranks=list(ranks),
                calls=list(calls),
            )
        )
        return self.membership.handle(self.now, LANE, sender, message)

    def says(self):
        said = []
        while (outgoing := self.membership.poll(self.now, LANE)) is not None:
            to, payload = outgoing
            message = native.parse_membership(payload, 5)
            said.append(
                Said(
                    to=to,
                    kind=message.kind,
                    ballot=message.ballot,
                    accepted=message.accepted,
                    part=message.part,
                    ranks=message.ranks,
                )
            )
        return said

    def until_it_asks_for_votes(self, reached=(1, 2, 3), suspects=None):
        """Lets the rank hear the others and their suspects; returns its ballot."""
        while True:
            for rank in reached:
                self.hears(rank, STATUS, ranks=(suspects or {}).get(rank, [4]))
            self.membership.handle_timeout(self.now)
            ballots = {said.ballot for said in self.says() if said.kind == PREPARE}
            if ballots:
                return ballots.pop()
            self.now += STEP
            assert self.now < 1.0 + 10 * TIMEOUT

    def proposals(self):
        return [said for said in self.says() if said.kind == PROPOSAL]


def coordinator():
    """Rank 0, which coordinates: rank 4 is silent."""
    one = OneRank(0)
    one.membership.suspect(one.now, LANE, 4)
    return one, one.until_it_asks_for_votes()


def test_a_proposal_that_is_older_than_a_promise_is_not_accepted():
    one = OneRank(2)
    one.hears(1, PROPOSAL, (2, 1), ranks=[0, 1, 2, 3])
    one.hears(0, PROPOSAL, (1, 0), ranks=[0, 1, 2])
    one.says()
    one.hears(3, PREPARE, (3, 3))
    vote = next(said for said in one.says() if said.kind == VOTE)
    assert (vote.to, vote.accepted, vote.ranks) == (3, (2, 1), [0, 1, 2, 3])


@pytest.mark.parametrize("kind", [PREPARE, PROPOSAL])
def test_a_coordinator_that_is_outrun_learns_of_the_newer_ballot(kind):
    one = OneRank(2)
    one.hears(1, PREPARE, (2, 1))
    one.says()
    one.hears(0, kind, (1, 0), ranks=[0, 1, 2, 3] if kind == PROPOSAL else [])
    answers = [said for said in one.says() if said.to == 0]
    assert [(said.kind, said.ballot) for said in answers] == [(STATUS, (2, 1))]


def test_votes_for_an_earlier_ballot_of_the_same_rank_do_not_count():
    one, first = coordinator()
    one.hears(1, PREPARE, (first[0] + 1, 1))
    second = one.until_it_asks_for_votes()
    assert second > first
    for rank in (1, 2, 3):
        one.hears(rank, VOTE, first, ranks=[4])
    assert one.proposals() == []
    for rank in (1, 2, 3):
        one.hears(rank, VOTE, second, ranks=[4])
    assert {said.ballot for said in one.proposals()} == {second}


def test_acceptances_of_an_earlier_ballot_of_the_same_rank_do_not_count():
    one, first = coordinator()
    for rank in (1, 2, 3):
        one.hears(rank, VOTE, first, ranks=[4])
    assert one.proposals()
    one.hears(1, PREPARE, (first[0] + 1, 1))
    second = one.until_it_asks_for_votes()
    for rank in (1, 2, 3):
        one.hears(rank, VOTE, second, ranks=[4])
    assert {said.ballot for said in one.proposals()} == {second}
    for rank in (1, 2, 3):
        one.hears(rank, ACCEPTED, first)
    assert one.membership.view[0] == 0
    for rank in (1, 2):
        one.hears(rank, ACCEPTED, second)
    assert one.membership.view[:2] == (1, [0, 1, 2, 3])


def test_a_ballot_proposes_one_value_whatever_votes_come_later():
    one = OneRank(0)
    one.membership.suspect(one.now, LANE, 4)
    # All others hear rank 4.
    ballot = one.until_it_asks_for_votes((1, 2, 3), {1: [], 2: [], 3: []})
    for rank in (1, 2, 3):
        one.hears(rank, VOTE, ballot)
    assert {tuple(said.ranks) for said in one.proposals()} == {(0, 1, 2, 3)}
    # The delayed request arrives.
    one.hears(4, VOTE, ballot)
    one.now += STEP
    one.membership.handle_timeout(one.now)
    assert {tuple(said.ranks) for said in one.proposals()} == {(0, 1, 2, 3)}
    for rank in (1, 2):
        one.hears(rank, ACCEPTED, ballot)
    assert one.membership.view[:2] == (1, [0, 1, 2, 3])


def test_a_minority_is_not_proposed():
    one = OneRank(0)
    for rank in (3, 4):
        one.membership.suspect(one.now, LANE, rank)
    # Ranks 1 and 2 do not hear each other: 0 could continue with one of them.
    suspects = {1: [2, 3, 4], 2: [1, 3, 4]}
    ballot = one.until_it_asks_for_votes((1, 2), suspects)
    for rank in (1, 2):
        one.hears(rank, VOTE, ballot, ranks=suspects[rank])
    for _ in range(10):
        one.now += STEP
        for rank in (1, 2):
            one.hears(rank, STATUS, ranks=suspects[rank])
        one.membership.handle_timeout(one.now)
        assert one.proposals() == []


def test_a_member_takes_no_decision_but_that_of_the_next_view():
    one = OneRank(0)
    assert not one.hears(1, DECISION, view=2, ranks=[0, 1, 2])
    assert one.membership.view[0] == 0
    assert one.hears(1, DECISION, view=1, ranks=[0, 1, 2])
    assert one.membership.view[:2] == (1, [0, 1, 2])


def test_a_rank_that_was_removed_is_told_now_and_then():
    one = OneRank(0)
    one.hears(1, DECISION, view=1, ranks=[0, 1, 2, 3])
    one.says()
    told = 0
    for _ in range(100):
        one.membership.heard(one.now, LANE, 4)
        told += sum((said.to, said.kind) == (4, DECISION) for said in one.says())
        one.now += 0.001
    assert told == 1
    one.now += 1.0
    one.membership.heard(one.now, LANE, 4)
    assert [(said.to, said.kind) for said in one.says()] == [(4, DECISION)]


def test_parts_of_a_proposal_do_not_join_those_of_an_older_one():
    one = OneRank(2)
    some = {"ranks": [0, 1, 2, 3]}
    one.hears(1, PROPOSAL, (4, 1), part=(0, 2), calls=[(1, 10)], **some)
    one.hears(1, PROPOSAL, (2, 1), part=(1, 2), calls=[(2, 20)], **some)
    assert ACCEPTED not in [said.kind for said in one.says()]
    one.hears(1, PROPOSAL, (4, 1), part=(1, 2), calls=[(2, 40)], **some)
    assert ACCEPTED in [said.kind for said in one.says()]


def test_parts_that_contradict_each_other_are_no_message():
    one = OneRank(2)
    some = {"ranks": [0, 1, 2, 3]}
    one.hears(1, PROPOSAL, (4, 1), part=(0, 2), calls=[(1, 10)], **some)
    one.hears(1, PROPOSAL, (4, 1), part=(1, 2), calls=[(1, 11)], **some)
    assert ACCEPTED not in [said.kind for said in one.says()]


def test_ranks_take_turns_with_the_parts_of_a_long_message():
    one = OneRank(0)
    calls = [(bucket, 1) for bucket in range(2 * CALLS_PER_PART)]
    for part in range(2):
        some = calls[part * CALLS_PER_PART :][:CALLS_PER_PART]
        one.hears(1, DECISION, view=1, part=(part, 2), ranks=[0, 1, 2, 3], calls=some)
    assert one.membership.view[0] == 1
    one.says()
    for rank in (1, 2, 3):
        one.hears(rank, STATUS)
    said = [(said.part, said.to) for said in one.says() if said.kind == DECISION]
    assert said == [(part, rank) for part in range(2) for rank in (1, 2, 3)]
