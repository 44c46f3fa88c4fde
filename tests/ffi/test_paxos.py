"""A value that one ballot may have decided is the value of every later ballot.

Each order of messages here would decide a view twice if a rule of the agreement were
missing. Times are in seconds of virtual time; messages take none.
"""

import optireduce_testing as native

TIMEOUT = 1.0
STEP = 0.01
LANE = 0
STATUS, PREPARE, VOTE, PROPOSAL, ACCEPTED, DECISION = range(1, 7)


class Ranks:
    """Five ranks, the last of which is dead; `passes` selects delivered messages."""

    def __init__(self):
        self.members = [native.Membership(rank, 5, TIMEOUT) for rank in range(5)]
        self.now = 2.0
        self.passed = []
        for rank in range(4):
            self.members[rank].suspect(self.now, LANE, 4)

    def run(self, seconds, passes):
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            for rank in range(4):
                at = self.members[rank].timeout()
                if at is not None and at <= self.now:
                    self.members[rank].handle_timeout(self.now)
            while self.turn(passes):
                pass

    def turn(self, passes):
        """Lets each rank send one message."""
        said = False
        for rank in range(4):
            outgoing = self.members[rank].poll(self.now, LANE)
            if outgoing is None:
                continue
            said = True
            to, message = outgoing
            kind = native.parse_membership(message, 5).kind
            if to != 4 and passes(rank, to, kind):
                self.passed.append((rank, to, kind))
                self.members[to].heard(self.now, LANE, rank)
                assert self.members[to].handle(self.now, LANE, rank, message)
        return said

    def view(self, rank):
        number, members, _ = self.members[rank].view
        return number, members


def test_a_view_that_its_coordinator_decided_alone_is_decided_by_the_others_too():
    ranks = Ranks()

    # Rank 0 gets its majority, the acceptances of 1 and 2, and is not heard after its
    # decision; 3 has not received the proposal.
    def lone(sender, to, kind):
        return not (sender == 0 and (kind == DECISION or (kind, to) == (PROPOSAL, 3)))

    while ranks.view(0)[0] == 0:
        ranks.run(STEP, lone)
        assert ranks.now < 2.0 + 3 * TIMEOUT
    assert ranks.view(0) == (1, [0, 1, 2, 3])
    assert [ranks.view(rank)[0] for rank in (1, 2, 3)] == [0, 0, 0]
    for rank in (1, 2, 3):
        ranks.members[rank].suspect(ranks.now, LANE, 0)
    ranks.members[0].suspect(ranks.now, LANE, 1)
    seen = {}

    def without_0(sender, to, _):
        for rank in (1, 2, 3):
            number, members = ranks.view(rank)
            assert seen.setdefault(number, members) == members
        return 0 not in (sender, to)

    ranks.run(8 * TIMEOUT, without_0)
    # The next view is without rank 0; view 1 is that ballot's decision.
    assert seen[1] == [0, 1, 2, 3]
    assert ranks.view(1) == ranks.view(2) == ranks.view(3) == (2, [1, 2, 3])


def test_of_two_values_that_were_accepted_the_one_of_the_newer_ballot_is_adopted():
    ranks = Ranks()

    # No other rank receives the proposal of rank 0, which has accepted it itself.
    def unheard(sender, _, kind):
        return not (sender == 0 and kind in (PROPOSAL, DECISION))

    while not any(kind == VOTE and to == 0 for _, to, kind in ranks.passed):
        ranks.run(STEP, unheard)
        assert ranks.now < 2.0 + 3 * TIMEOUT
    ranks.run(2 * STEP, unheard)
    for rank in (1, 2, 3):
        ranks.members[rank].suspect(ranks.now, LANE, 0)

    # Rank 1 coordinates among 1, 2 and 3, decides, and is not heard afterwards.
    def among_three(sender, to, kind):
        return 0 not in (sender, to) and not (sender == 1 and kind == DECISION)

    while ranks.view(1)[0] == 0:
        ranks.run(STEP, among_three)
        assert ranks.now < 2.0 + 8 * TIMEOUT
    decided = ranks.view(1)
    assert decided == (1, [1, 2, 3])
    assert ranks.view(2)[0] == ranks.view(3)[0] == 0
    # Now 0, 2 and 3 continue without it: they have accepted different values.
    for rank in (0, 2, 3):
        ranks.members[rank].suspect(ranks.now, LANE, 1)
    ranks.passed.clear()
    ranks.run(8 * TIMEOUT, lambda sender, to, _: 1 not in (sender, to))
    for rank in (0, 2, 3):
        number, members = ranks.view(rank)
        if number == 1:
            assert members == decided[1]
    assert ranks.view(2)[0] >= 1
