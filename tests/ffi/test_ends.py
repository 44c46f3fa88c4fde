"""Ends of calls and ranks: announcements, and the data retained for peers."""

import numpy as np
import pytest
from session import Session

import optireduce_testing as native

RESULT, LEAVE = 2, 6


def ones() -> np.ndarray:
    return np.ones(10, np.float32)


def kind_of(datagram: bytes) -> int:
    return native.parse_header(datagram).kind


def lose(session: Session, kind: int) -> int:
    """Loses the datagrams of this kind under way, and returns their number."""
    session.collect()
    kept = [sent for sent in session.wire if kind_of(sent[1]) != kind]
    lost = len(session.wire) - len(kept)
    session.wire = kept
    return lost


def test_a_rank_that_leaves_keeps_nothing_for_calls_that_it_will_not_make():
    session = Session(2, "bounded")
    for rank in range(2):
        session.call(rank)
    session.run(0.5)
    session.ranks[1].leave(session.now, "its program has ended")
    # Rank 0 has not learned it yet, and continues.
    assert lose(session, LEAVE) == 1
    session.call(0, 1)
    session.collect()
    for to, datagram in session.wire:
        session.ranks[to].handle_datagram(session.now, datagram)
    assert session.ranks[1].memory_bytes() == 0


def test_a_rank_has_not_left_before_its_peers_know():
    session = Session(2)
    for rank in range(2):
        session.call(rank)
    session.run(0.5)
    session.ranks[0].leave(session.now, "its program has ended")
    assert lose(session, LEAVE) == 1
    assert not session.ranks[0].finished()
    session.run(0.5)
    assert session.ranks[0].finished()


@pytest.mark.parametrize("peer_timeout_s", [0.2, 0.4])
def test_a_rank_that_computes_is_not_dead_however_short_the_timeout(peer_timeout_s):
    session = Session(2, peer_timeout_s=peer_timeout_s)
    session.submit(0, ones())
    session.run(5.0)
    assert session.done[0] == {}
    session.submit(1, ones())
    session.run(0.1)
    assert session.done[0][0].error == session.done[1][0].error == ""


def test_ranks_that_are_one_call_ahead_of_each_other_in_two_collectives_agree():
    session = Session(3, mismatch_timeout_s=1.0)

    def call(rank, sequence):
        name = "a" if sequence < 10 else "b"
        session.submit(rank, ones(), name=name, sequence=sequence)

    # Rank 1 lacks a sum of the first call of a, and rank 0 one of b: they are lost.
    session.holds = lambda header, to: (
        (header.kind, header.source) == (RESULT, 2)
        and (to, header.sequence) in ((1, 0), (0, 10))
    )
    for rank in range(3):
        call(rank, 0)
        call(rank, 10)
    session.run(0.1)
    assert [sorted(done) for done in session.done] == [[0], [10], [0, 10]]
    call(0, 1)
    call(1, 11)
    session.run(10.0)
    assert [sorted(done) for done in session.done] == [[0], [10], [0, 10]]
    session.holds = None
    while 10 not in session.done[0] or 0 not in session.done[1]:
        session.run(0.01)
    for rank, sequence in ((0, 11), (1, 1), (2, 1), (2, 11)):
        call(rank, sequence)
    session.run(1.0)
    for done in session.done:
        assert [done[token].error for token in (0, 1, 10, 11)] == [""] * 4


def test_a_call_that_a_peer_has_announced_with_other_shapes_does_not_begin():
    session = Session(2)
    session.submit(1, np.ones(999, np.float32), fingerprint=999)
    session.run(0.1)
    session.silent = {1}
    session.submit(0, np.ones(1000, np.float32), fingerprint=1000)
    session.collect()
    message = session.done[0][0].error
    assert "the ranks disagree" in message
    assert "float32[999]" in message


def test_of_two_ranks_the_error_names_the_one_that_is_silent():
    session = Session(2, peer_timeout_s=1.0)
    for rank in range(2):
        session.submit(rank, ones(), mode="bounded")
    session.run(0.5)
    session.silent = {1}
    for sequence in range(1, 30):
        if session.submit(0, ones(), sequence=sequence, mode="bounded"):
            break
        session.run(0.2)
    message = session.submit(0, ones(), sequence=40, mode="bounded")
    assert "rank 1 has been silent for more than 1.0 s (peer_timeout_s)" in message
    assert "go on without" not in message
