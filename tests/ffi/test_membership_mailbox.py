"""Messages of the membership: which are due, over which lane, and in which parts."""

import itertools

import pytest

import optireduce_testing as native

STATUS, PREPARE, VOTE, PROPOSAL, ACCEPTED, DECISION = range(1, 7)
# Source: kMembershipCallsMax of membership_message.h.
CALLS_PER_PART = 43
CALLS = [(bucket, bucket % 7) for bucket in range(2 * CALLS_PER_PART + 1)]


def mailbox(rank=0, lanes=2):
    return native.MembershipMailbox(rank, 4, lanes)


def sent(box, lane=0, **options):
    """All messages of a lane: (receiver, kind, part)."""
    messages = []
    while (outgoing := box.poll(lane, **options)) is not None:
        message = native.parse_membership(outgoing[1], 4)
        messages.append((outgoing[0], message.kind, message.part))
    return messages


def test_a_message_is_sent_once_however_often_it_is_queued():
    box = mailbox()
    box.queue(0, 1, STATUS)
    box.queue(0, 1, STATUS)
    assert sent(box) == [(1, STATUS, 0)]
    assert sent(box) == []


def test_a_rank_sends_itself_nothing():
    box = mailbox(rank=2)
    box.queue_all([0, 2], STATUS)
    assert sent(box) == [(0, STATUS, 0)]


def test_messages_to_all_go_over_every_lane():
    box = mailbox()
    box.queue_all([1, 3], STATUS)
    for lane in (0, 1):
        assert sent(box, lane) == [(1, STATUS, 0), (3, STATUS, 0)]


def test_ranks_take_turns_with_their_parts():
    box = mailbox()
    box.queue_all([1, 2], VOTE)
    expected = [(rank, VOTE, part) for part in range(3) for rank in (1, 2)]
    assert sent(box, calls=CALLS) == expected


def test_an_obsolete_message_is_not_sent_later():
    box = mailbox()
    box.queue(0, 1, PREPARE)
    box.queue(0, 1, STATUS)
    assert sent(box, obsolete=[PREPARE]) == [(1, STATUS, 0)]
    assert sent(box) == []


def test_a_decision_is_sent_again_only_after_an_interval():
    box = mailbox()
    for step in range(10):
        box.queue_decision(1.0 + step / 1000, 0, 3)
        assert sent(box) == ([(3, DECISION, 0)] if step == 0 else [])
    box.queue_decision(2.0, 0, 3)
    assert sent(box) == [(3, DECISION, 0)]


def test_a_new_view_leaves_nothing_due():
    box = mailbox()
    box.queue_all([1, 2, 3], STATUS)
    box.clear()
    assert sent(box) == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_message_is_whole_once_all_parts_are_there_in_any_order(order):
    sender, receiver = mailbox(), mailbox(rank=1)
    sender.queue(0, 1, VOTE)
    parts = [sender.poll(0, calls=CALLS)[1] for _ in range(3)]
    for part in order[:2]:
        assert receiver.assemble(0, parts[part]) is None
        assert receiver.assemble(0, parts[part]) is None
    assert receiver.assemble(0, parts[order[2]]) == CALLS


def test_parts_of_different_senders_do_not_join():
    sender, receiver = mailbox(), mailbox(rank=1)
    sender.queue(0, 1, VOTE)
    parts = [sender.poll(0, calls=CALLS)[1] for _ in range(3)]
    assert receiver.assemble(0, parts[0]) is None
    assert receiver.assemble(2, parts[1]) is None
    assert receiver.assemble(0, parts[2]) is None
    assert receiver.assemble(0, parts[1]) == CALLS
