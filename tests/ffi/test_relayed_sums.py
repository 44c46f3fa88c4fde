"""Sums of a late rank that other members forward.

The first tests drive the sums that member 0 forwards, the last ones all endpoints of a
call whose last rank is late.
"""

import numpy as np
import pytest
from session import Recorded

import optireduce_testing as native

MEMBERS = 4
SEGMENTS = 2  # segments of each member
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


# ---- In a session.

_RESULT = 2  # kind of a datagram
# Elements of a segment, in the datagrams of a session.
ELEMENTS = (1472 - 40) // FLOAT
# Segments of each member in the shortest bucket that is relayed.
SEGMENTS_MIN = 256 // MEMBERS


def _late(segments_each=SEGMENTS_MIN, *, holds=None) -> Recorded:
    """A call of all ranks, of which the last one is late."""
    session = Recorded(MEMBERS, elements=MEMBERS * segments_each * ELEMENTS)
    for rank in range(LATE):
        session.call(rank)
    session.run(0.01)
    session.holds = holds
    session.call(LATE)
    return session


def _is_relayed(header) -> bool:
    of_late = header.segment >= LATE * SEGMENTS_MIN
    return header.kind == _RESULT and header.source != LATE and of_late


def _assert_sums(session, ranks=range(MEMBERS)):
    total = sum(1 + rank for rank in range(MEMBERS))
    for rank in ranks:
        assert session.done[rank][0].error == ""
        assert (session.buckets[rank, 0] == np.float32(total)).all()


def test_a_late_rank_sends_each_of_its_sums_once():
    session = _late()
    session.run(0.01)
    _assert_sums(session)
    assert len(session.of(LATE, _RESULT, 0)) == SEGMENTS_MIN
    assert sum(map(_is_relayed, session.sent)) == (MEMBERS - 2) * SEGMENTS_MIN


def test_a_late_rank_sends_the_sums_of_a_small_bucket_to_all():
    session = _late(SEGMENTS_MIN - 1)
    session.run(0.01)
    _assert_sums(session)
    assert len(session.of(LATE, _RESULT, 0)) == (MEMBERS - 1) * (SEGMENTS_MIN - 1)


def test_a_relay_sends_lost_sums_again_after_the_end_of_its_own_call():
    session = _late(holds=lambda header, to: to == 1 and _is_relayed(header))
    session.run(0.001)
    # The other relays of rank 1 are done as well.
    _assert_sums(session, [0, 2, LATE])
    assert session.held
    assert not session.done[1]
    session.lose()
    session.run(1.0)
    _assert_sums(session)


def test_sums_of_a_late_rank_that_has_left_still_arrive():
    session = _late(holds=lambda header, to: to == 1 and _is_relayed(header))
    session.run(0.001)
    session.ranks[LATE].leave(session.now, "its program has ended")
    session.run(0.001)
    assert not session.done[1]
    session.lose()
    session.run(1.0)
    _assert_sums(session)


def test_a_rank_that_leaves_without_the_call_fails_it_at_once():
    session = Recorded(MEMBERS, elements=MEMBERS * SEGMENTS_MIN * ELEMENTS)
    for rank in range(LATE):
        session.call(rank)
    session.run(0.01)
    session.ranks[LATE].leave(session.now, "its program has ended")
    session.run(0.01)
    for rank in range(LATE):
        assert "rank 3 has left" in session.done[rank][0].error
