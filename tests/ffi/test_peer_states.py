"""The states of a peer: alive, suspected, silent, left, removed."""

import pytest
from session import Session, rejected

import optireduce_testing as native

DEADLINE_S = 0.1
PEER_TIMEOUT_S = 1.0
# Chosen: of removals that are agreed on.
SETTLED_S = 8.0
# Source: DatagramKind of wire.h.
MEMBERSHIP = 7
# Chosen: shorter than a full datagram, longer than an acknowledgement.
NARROW_BYTES = 700


class Ranks(Session):
    """Ranks that suspect a silent one after a second."""

    def __init__(self, world_size, mode, **options):
        super().__init__(world_size, mode, peer_timeout_s=PEER_TIMEOUT_S, **options)
        self.sequence = 0

    def collective(self, elements, **facts):
        collective = super().collective(elements, **facts)
        collective.deadline_s = DEADLINE_S
        return collective

    def call_on(self, ranks):
        """A call on some ranks, and the time that it takes to settle."""
        for rank in ranks:
            self.call(rank, self.sequence)
        self.sequence += 1
        self.run(SETTLED_S)

    def leave(self, rank):
        self.ranks[rank].leave(self.now, "its program has ended")
        self.run()


class Narrow(Ranks):
    """Once `narrow`, the path from rank 0 to rank 2 loses long datagrams."""

    narrow = False

    def deliver_next(self):
        to, datagram = self.wire[0]
        from_0 = native.parse_header(datagram).source == 0
        if self.narrow and from_0 and to == 2 and len(datagram) > NARROW_BYTES:
            self.wire.pop(0)
        else:
            super().deliver_next()


@pytest.fixture
def bounded():
    session = Ranks(3, "bounded")
    session.call_on(range(3))
    return session


def test_all_ranks_are_live_and_none_is_silent_while_all_answer(bounded):
    assert bounded.ranks[0].live() == [0, 1, 2]
    assert bounded.ranks[0].silent() == []


def test_a_silent_rank_is_removed_and_named_silent(bounded):
    bounded.silent.add(2)
    bounded.call_on([0, 1])
    for rank in (0, 1):
        assert bounded.ranks[rank].live() == [0, 1]
        assert bounded.ranks[rank].silent() == [2]


def test_a_rank_that_left_is_removed_and_not_named_silent(bounded):
    bounded.leave(2)
    bounded.call_on([0, 1])
    for rank in (0, 1):
        assert bounded.ranks[rank].live() == [0, 1]
        assert bounded.ranks[rank].silent() == []


def test_a_removed_rank_is_told_so_and_its_datagrams_are_rejected(bounded):
    bounded.silent.add(2)
    bounded.call_on([0, 1])
    bounded.silent.clear()
    bounded.call(2, 1)
    bounded.run(SETTLED_S)
    assert "this rank, 2, was removed" in bounded.done[2][1].error
    assert bounded.ranks[0].counters()["rejected_removed"] > 0


def test_a_datagram_of_a_removed_rank_counts_once_and_asks_for_nothing(bounded):
    bounded.silent.add(2)
    bounded.call_on([0, 1])
    bounded.silent.clear()
    bounded.call(2, 1)
    bounded.collect()
    receiver = bounded.ranks[0]
    due = receiver.poll_timeout()
    datagram = next(datagram for to, datagram in bounded.wire if to == 0)
    for _ in range(3):
        receiver.handle_datagram(bounded.now, datagram)
    assert rejected(receiver) == {"rejected_removed": 1, "rejected_replayed": 2}
    assert receiver.poll_timeout() == due


def test_a_peer_that_gets_no_long_datagrams_stays_silent_although_it_is_heard():
    session = Narrow(3, "bounded", elements=3000)
    session.call_on(range(3))
    session.narrow = True
    # Without an agreement the peer stays a member.
    session.holds = lambda header, _: header.kind == MEMBERSHIP
    for rank in range(3):
        session.call(rank, 1)
    while session.ranks[0].silent() != [2]:
        session.run(0.1)
    session.call(2, 2)
    session.collect()
    for datagram in [datagram for to, datagram in session.wire if to == 0]:
        session.ranks[0].handle_datagram(session.now, datagram)
        assert session.ranks[0].silent() == [2]


def test_a_minority_keeps_the_data_of_suspects_until_they_answer(bounded):
    bounded.silent |= {1, 2}
    bounded.call(0, 1)
    bounded.run(SETTLED_S)
    assert bounded.ranks[0].live() == [0, 1, 2]
    assert bounded.ranks[0].silent() == [1, 2]
    bounded.silent.clear()
    for rank in (1, 2):
        bounded.call(rank, 1)
    bounded.run(SETTLED_S)
    assert bounded.ranks[0].silent() == []
    bounded.call(0, 2, drain=True)
    for rank in (1, 2):
        bounded.call(rank, 2, drain=True)
    bounded.run(SETTLED_S)
    assert [done[2].error for done in bounded.done] == ["", "", ""]


def test_without_an_agreement_a_silent_rank_is_silent_until_it_is_heard():
    session = Ranks(2, "exact")
    session.call_on(range(2))
    session.silent.add(1)
    session.call_on([0])
    assert "rank 1 has been silent" in session.done[0][1].error
    assert session.ranks[0].silent() == [1]
    session.silent.clear()
    session.call(1, 1)
    session.run()
    assert session.ranks[0].silent() == []


def test_a_rank_that_leaves_reaches_all_peers_that_answer():
    session = Ranks(3, "exact")
    session.call_on(range(3))
    session.silent.add(2)
    session.leave(0)
    assert session.ranks[0].unreached() == [2]
    session.run(SETTLED_S)
    assert session.ranks[0].finished()
