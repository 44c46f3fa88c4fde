"""Which messages about members are read: what does not fit together is not."""

import pytest

from jax_optireduce import _testing

STATUS, PREPARE, VOTE, PROPOSAL, ACCEPTED, DECISION = range(1, 7)
NONE = (0, 0)
BALLOT = (3, 1)
RANKS = [0, 1, 2]
CALLS = [(1, 5), (7, 2)]

# By kind: (kind, asks, view, ballot, accepted, (part, parts), ranks, calls).
MESSAGES = {
    STATUS: (STATUS, False, 2, NONE, NONE, (0, 1), [2], []),
    PREPARE: (PREPARE, False, 2, BALLOT, NONE, (0, 1), [], []),
    VOTE: (VOTE, False, 2, BALLOT, NONE, (1, 2), RANKS, CALLS),
    PROPOSAL: (PROPOSAL, False, 2, BALLOT, NONE, (1, 2), RANKS, CALLS),
    ACCEPTED: (ACCEPTED, False, 2, BALLOT, NONE, (0, 1), [], []),
    DECISION: (DECISION, False, 2, NONE, NONE, (1, 2), RANKS, CALLS),
}


def read(message, **changes):
    """What a message is read as, with some of its fields replaced."""
    places = {"accepted": 4, "part": 5, "calls": 7}
    fields = list(message)
    for name, value in changes.items():
        fields[places[name]] = value
    changed = tuple(fields)
    parsed = _testing.parse_membership(_testing.encode_membership(changed), 4)
    assert parsed in (None, changed)
    return parsed


@pytest.mark.parametrize("kind", MESSAGES)
def test_only_a_vote_has_an_accepted_ballot_and_none_after_its_own(kind):
    message = MESSAGES[kind]
    assert read(message)
    for accepted in ((1, 0), (2, 3), BALLOT):
        assert (read(message, accepted=accepted) is not None) == (kind == VOTE)
    for later in ((3, 2), (4, 0)):
        assert read(message, accepted=later) is None


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("part", [(1, 1), (2, 2), (3, 2), (65535, 2), (0, 0)])
def test_a_part_beyond_the_last_is_not_read(kind, part):
    assert read(MESSAGES[kind], part=part) is None


@pytest.mark.parametrize("kind", [VOTE, PROPOSAL, DECISION])
@pytest.mark.parametrize(
    "calls", [[(7, 2), (1, 5)], [(7, 2), (7, 2)], [(7, 2), (7, 3)]]
)
def test_calls_of_a_message_ascend(kind, calls):
    assert read(MESSAGES[kind], calls=calls) is None
