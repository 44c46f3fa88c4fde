"""Sums of a late rank that member 0 forwards."""

import pytest

import optireduce_testing as native

MEMBERS = 4
SEGMENTS = 2  # of each member
LATE = 3
FIRST = LATE * SEGMENTS  # segment of the late rank
FLOAT = 4


@pytest.fixture
def relayed():
    return native.RelayedSums(members=MEMBERS, segments_each=SEGMENTS)


def sent(relayed, to):
    """All that there is to send to a member: (segment, is a retransmission)."""
    items = []
    while item := relayed.next(to):
        relayed.pop(to)
        items.append(item)
    return items


def test_a_sum_goes_to_every_member_but_its_owner(relayed):
    relayed.add(FIRST, 2.5)
    assert [sent(relayed, to) for to in (1, 2)] == [[(FIRST, False)]] * 2
    assert sent(relayed, LATE) == []
    assert relayed.delivered(LATE)
    assert relayed.sum(FIRST) == 2.5


def test_sums_leave_in_the_order_of_their_arrival(relayed):
    relayed.add(FIRST + 1, 1.0)
    relayed.add(FIRST, 2.0)
    assert relayed.unsent(1) == 2
    assert sent(relayed, 1) == [(FIRST + 1, False), (FIRST, False)]
    assert relayed.unsent(1) == 0


def test_a_lost_sum_is_sent_again_until_it_is_delivered(relayed):
    relayed.add(FIRST, 1.0)
    sent(relayed, 1)
    relayed.retransmit(1, FIRST)
    assert sent(relayed, 1) == [(FIRST, True)]
    relayed.retransmit(1, FIRST)
    relayed.deliver(1, FIRST)
    assert sent(relayed, 1) == []


def test_a_member_has_everything_once_each_sum_is_delivered(relayed):
    relayed.add(FIRST, 1.0)
    relayed.add(FIRST + 1, 1.0)
    relayed.deliver(1, FIRST)
    # The same datagram may be delivered twice.
    relayed.deliver(1, FIRST)
    assert not relayed.delivered(1)
    relayed.deliver(1, FIRST + 1)
    assert relayed.delivered(1)
    assert not relayed.delivered(2)


def test_sums_that_all_have_take_no_memory(relayed):
    relayed.add(FIRST, 1.0)
    assert relayed.memory_bytes >= FLOAT
    relayed.deliver(1, FIRST)
    relayed.deliver(2, FIRST)
    assert relayed.memory_bytes == 0


def test_nothing_is_kept_for_a_member_that_is_gone(relayed):
    relayed.add(FIRST, 1.0)
    relayed.release(1)
    assert relayed.delivered(1)
    relayed.deliver(2, FIRST)
    assert relayed.memory_bytes == 0
    relayed.add(FIRST + 1, 1.0)
    assert (sent(relayed, 1), relayed.unsent(1)) == ([], 0)
    assert sent(relayed, 2) == [(FIRST + 1, False)]


def test_several_late_ranks_have_their_sums_relayed(relayed):
    relayed.add(FIRST, 1.0)
    relayed.add(2 * SEGMENTS, 2.0)
    assert sent(relayed, 2) == [(FIRST, False)]
    assert sent(relayed, LATE) == [(2 * SEGMENTS, False)]
