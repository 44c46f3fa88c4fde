"""Messages of the membership: inconsistent ones are rejected."""

import pytest

import optireduce_testing as native

STATUS, PREPARE, VOTE, PROPOSAL, ACCEPTED, DECISION = range(1, 7)
BALLOT = (3, 1)
RANKS = [0, 1, 2]
CALLS = [(1, 5), (7, 2)]

MESSAGES = {
    STATUS: {"ranks": [2]},
    PREPARE: {"ballot": BALLOT},
    VOTE: {"ballot": BALLOT, "part": 1, "parts": 2, "ranks": RANKS, "calls": CALLS},
    PROPOSAL: {"ballot": BALLOT, "part": 1, "parts": 2, "ranks": RANKS, "calls": CALLS},
    ACCEPTED: {"ballot": BALLOT},
    DECISION: {"part": 1, "parts": 2, "ranks": RANKS, "calls": CALLS},
}


def read(kind, **changes):
    """The parsed form of a message with some of its fields replaced."""
    fields = MESSAGES[kind] | changes
    message = native.MembershipMessage(kind=kind, view=2, **fields)
    parsed = native.parse_membership(native.encode_membership(message), 4)
    assert parsed in (None, message)
    return parsed


@pytest.mark.parametrize("kind", MESSAGES)
def test_only_a_vote_has_an_accepted_ballot_and_none_after_its_own(kind):
    assert read(kind)
    for accepted in ((1, 0), (2, 3), BALLOT):
        assert (read(kind, accepted=accepted) is not None) == (kind == VOTE)
    for later in ((3, 2), (4, 0)):
        assert read(kind, accepted=later) is None


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize(
    ("part", "parts"), [(1, 1), (2, 2), (3, 2), (65535, 2), (0, 0)]
)
def test_a_part_beyond_the_last_is_not_read(kind, part, parts):
    assert read(kind, part=part, parts=parts) is None


@pytest.mark.parametrize("kind", [VOTE, PROPOSAL, DECISION])
@pytest.mark.parametrize(
    "calls", [[(7, 2), (1, 5)], [(7, 2), (7, 2)], [(7, 2), (7, 3)]]
)
def test_calls_of_a_message_ascend(kind, calls):
    assert read(kind, calls=calls) is None
