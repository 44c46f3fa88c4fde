"""Refused segments are held back, and retransmitted once the peer accepts them."""

import numpy as np
from session import Session

import optireduce_testing as native

ELEMENTS = 300
SHARD_BYTES = 600
CALLS = 5
# Source: ffi/protocol/options.h. This many calls are accepted, the next is refused.
MAX_LAG = 2
ACKNOWLEDGEMENT = 3


def ones() -> np.ndarray:
    return np.ones(ELEMENTS, np.float32)


def call(
    session: Session, rank: int, mode: str, members: list[int], deadline_s=5.0
) -> None:
    array = ones()
    session.kept.append(array)
    collective = session.collective(array.size, name=mode, mode=mode)
    collective.members = members
    collective.deadline_s = deadline_s
    token = len(session.kept)
    assert session.ranks[rank].submit(session.now, collective, array, 0, token) == ""


def test_of_several_calls_ahead_each_is_refused_once():
    session = Session(2)
    for sequence in range(CALLS):
        session.submit(0, ones(), sequence=sequence)
    session.run(20.0)
    assert session.ranks[1].counters()["rejected_early"] == CALLS - MAX_LAG


def run_with_latency(session: Session, seconds: float) -> None:
    """Datagrams take a millisecond."""
    for _ in range(round(seconds * 1000)):
        session.collect()
        arriving, session.wire = session.wire, []
        session.now += 0.001
        for to, datagram in arriving:
            session.ranks[to].handle_datagram(session.now, datagram)
        for rank in session.ranks:
            rank.handle_timeout(session.now)


def test_calls_that_no_list_has_room_for_are_held_back_by_time():
    # An acknowledgement of the smallest datagrams lists some fifty.
    session = Session(2, datagram_bytes_max=548, early_bytes_max=1)
    collectives = 80
    for token in range(collectives):
        session.submit(0, ones(), name=f"x{token}", token=token)
    run_with_latency(session, 1.0)
    before = session.ranks[1].counters()["rejected_early"]
    run_with_latency(session, 1.0)
    # Twice a second, and each takes two datagrams.
    refused = session.ranks[1].counters()["rejected_early"] - before
    assert 0 < refused <= 2 * 2 * collectives
    for token in range(collectives):
        session.submit(1, ones(), name=f"x{token}", token=token)
    run_with_latency(session, 1.0)
    assert [len(done) for done in session.done] == [collectives] * 2


def test_an_older_list_does_not_hold_back_what_is_taken_by_now():
    session = Session(2, early_bytes_max=1)
    session.submit(0, ones())
    session.collect()
    for to, datagram in session.wire:
        session.ranks[to].handle_datagram(session.now, datagram)
    session.wire.clear()
    session.collect()
    older = [
        sent
        for sent in session.wire
        if native.parse_header(sent[1]).kind == ACKNOWLEDGEMENT
    ]
    assert [to for to, _ in older] == [0]
    session.wire.clear()
    # Rank 1 makes the call. Its datagrams overtake the list of refusals.
    session.submit(1, ones())
    session.collect()
    for to, datagram in session.wire + older:
        session.ranks[to].handle_datagram(session.now, datagram)
    session.wire.clear()
    session.run(0.0)
    assert sorted(session.done[0]) == sorted(session.done[1]) == [0]


def test_a_peer_that_refuses_is_asked_whether_it_still_does():
    session = Session(3, early_bytes_max=SHARD_BYTES)
    # The data of rank 2 uses all of rank 1's memory for calls not made yet.
    call(session, 2, "exact", [1, 2])
    session.run(0.1)
    call(session, 0, "bounded", [0, 1])
    session.run(0.1)
    assert session.ranks[1].counters()["rejected_early"] > 0
    call(session, 1, "exact", [1, 2])
    # The announcement of free memory does not reach rank 0.
    for _ in range(10):
        session.collect()
        for to, datagram in session.wire:
            if to != 0:
                session.ranks[to].handle_datagram(session.now, datagram)
        session.wire.clear()
        session.now += 0.001
        for rank in session.ranks:
            rank.handle_timeout(session.now)
    assert session.ranks[1].memory_bytes() == 0
    session.run(1.0)
    assert session.ranks[1].memory_bytes() == SHARD_BYTES


def test_a_peer_that_gives_up_several_calls_ends_all_of_them_at_once():
    session = Session(2)
    for rank in range(2):
        session.submit(rank, ones())
    session.run(0.1)
    for sequence in range(1, 4):
        session.submit(1, ones(), sequence=sequence)
    session.run(0.0)
    for sequence in range(1, 4):
        session.give_up(0, ELEMENTS, sequence=sequence)
    session.run(0.0)
    assert sorted(session.done[1]) == [0, 1, 2, 3]
    assert all("interrupted" in session.done[1][call].error for call in (1, 2, 3))


def test_a_silent_peer_is_not_asked_for_ever():
    # The questions about refused data must not put off the probes that show a silence.
    session = Session(2, early_bytes_max=1, peer_timeout_s=3.0)
    call(session, 0, "bounded", [0, 1], deadline_s=0.1)
    # After so long a round trip, probes are as far apart as they may be.
    session.holds = lambda header, _: header.source == 1
    session.run(2.5)
    session.release()
    session.run(0.1)
    assert session.ranks[1].counters()["rejected_early"] > 0
    session.silent.add(1)
    session.ranks[0].leave(session.now, "the program has ended")
    session.run(20.0)
    assert session.ranks[0].finished()
