"""Peers that are behind: calls wait for each, and abandon it, independently."""

import numpy as np
from session import Session

import optireduce_testing as native

CONTRIBUTION = 1
DEADLINE_S = 0.1  # both stages together
JUST_S = 1e-6


def _contributes(datagram: bytes, *, rank: int) -> bool:
    header = native.parse_header(datagram)
    return (header.kind, header.source) == (CONTRIBUTION, rank)


def test_a_rank_that_was_left_and_has_caught_up_is_waited_for_again():
    session = Session(2, "bounded", max_lag=1, peer_timeout_s=2.0)
    for sequence in range(3):
        session.call(0, sequence)
        session.run(DEADLINE_S + JUST_S)
    session.run(2.0)
    assert set(session.done[0]) == {0, 1, 2}
    # Rank 1 was abandoned, and makes all calls now.
    for sequence in range(3):
        session.call(1, sequence)
    session.run(1.0)
    for sequence in range(3, 5):
        for rank in range(2):
            session.call(rank, sequence)
        session.run(1.0)
        assert sequence in session.done[0]
    # Then its program stops calling again.
    for sequence in range(5, 8):
        session.call(0, sequence)
        session.run(DEADLINE_S + JUST_S)
    assert set(session.done[0]) == set(range(7))
    session.run(2.0)
    assert set(session.done[0]) == set(range(8))


def test_an_absent_rank_that_comes_back_is_waited_for_in_all_of_its_segments():
    session = Session(3, "lossy", elements=3 * 1000)
    # Its endpoint accepts two more; and three without it make it absent.
    absent_calls = 6
    for sequence in range(1 + absent_calls):
        for rank in range(3):
            if rank < 2 or sequence == 0:
                session.call(rank, sequence)
        session.run(DEADLINE_S + JUST_S)
    last = 1 + absent_calls
    for rank in range(3):
        session.call(rank, last)
    session.collect()
    # The first arrival is a contribution of rank 2; its others come last.
    of_2 = [sent for sent in session.wire if _contributes(sent[1], rank=2)]
    of_others = [sent for sent in session.wire if sent not in of_2]
    first = {to: (to, datagram) for to, datagram in reversed(of_2)}
    session.wire = [*first.values(), *of_others]
    rest = [sent for sent in of_2 if sent not in session.wire]
    assert {to for to, _ in rest} == {0, 1}
    session.run(0.0)
    session.wire += rest
    session.run(DEADLINE_S + JUST_S)
    for rank in range(3):
        done = session.done[rank][last]
        assert done.error == ""
        assert done.missing_contributions == done.missing_results == 0
        np.testing.assert_array_equal(session.buckets[rank, last], 6 + 30 * last)
