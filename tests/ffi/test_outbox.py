"""The unsent segments of one call to one peer, in the order of sending."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native

# The shard of the peer has segments 4 to 6, that of this rank 10 to 12.
PEER, OWN, SEGMENTS = 4, 10, 3


def made(offered=True):
    outbox = native.Outbox(PEER, SEGMENTS, OWN, SEGMENTS)
    if offered:
        outbox.offer_contributions()
    return outbox


def sent(outbox, sums=(), *, contribute=True, most=20):
    """Sends up to `most`; returns (kind, segment)."""
    items = []
    while len(items) < most and (item := outbox.next(list(sums), contribute)):
        outbox.pop(item)
        items.append(item[:2])
    return items


def test_before_the_program_calls_there_are_no_contributions():
    outbox = made(offered=False)
    assert not outbox.contributing
    assert sent(outbox) == []
    outbox.offer_contributions()
    assert sent(outbox) == [("contribution", segment) for segment in (4, 5, 6)]


def test_contributions_go_before_sums():
    items = sent(made(), [11, 10])
    assert items == [("contribution", s) for s in (4, 5, 6)] + [
        ("sum", 11),
        ("sum", 10),
    ]


def test_sums_go_while_it_is_not_the_turn_of_the_peer():
    assert sent(made(), [12], contribute=False) == [("sum", 12)]


def test_retransmissions_go_first_and_sums_before_contributions():
    outbox = made()
    assert sent(outbox, [10], most=4)[-1] == ("sum", 10)
    outbox.retransmit(("contribution", 5, True))
    outbox.retransmit(("sum", 10, True))
    again = [outbox.next([10, 11], True)]
    outbox.pop(again[0])
    again.append(outbox.next([10, 11], True))
    assert again == [("sum", 10, True), ("contribution", 5, True)]


def test_each_retransmission_is_made_once():
    outbox = made()
    sent(outbox)
    lost = [("contribution", segment) for segment in (4, 6, 5)]
    for item in lost:
        outbox.retransmit((*item, True))
    assert sorted(sent(outbox)) == sorted(lost)


def test_sums_that_the_peer_has_need_not_be_sent():
    outbox = made(offered=False)
    for segment in (10, 11, 12):
        assert not outbox.delivered
        outbox.deliver(segment)
    assert outbox.delivered
    assert sent(outbox, [10, 11, 12]) == []


def test_all_delivered_sums_need_no_retransmission():
    outbox = made(offered=False)
    sent(outbox, [10])
    outbox.retransmit(("sum", 10, True))
    outbox.deliver_all()
    assert sent(outbox, [10, 11]) == []
    assert outbox.undelivered == 0


def test_abandoned_contributions_are_not_sent_again_either():
    outbox = made()
    sent(outbox, most=2)
    outbox.retransmit(("contribution", 4, True))
    outbox.abandon_contributions()
    assert sent(outbox) == []
    assert outbox.remaining("contribution") == 0


@hypothesis.given(st.permutations([10, 11, 12]), st.integers(0, 10))
def test_each_segment_is_sent_once_and_what_remains_is_counted(sums, most):
    outbox = made()
    items = sent(outbox, sums, most=most)
    assert len(set(items)) == len(items) == min(most, 2 * SEGMENTS)
    kinds = [kind for kind, _ in items]
    for kind in ("sum", "contribution"):
        assert outbox.remaining(kind) == SEGMENTS - kinds.count(kind)
