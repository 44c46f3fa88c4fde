"""Peers that are behind: each is waited for, and left, by itself. Virtual time."""

import numpy as np
from endpoints import DEADLINE_S, JUST_S, Modes

from jax_optireduce import _testing

CONTRIBUTION = 1


def _contributes(datagram: bytes, *, rank: int) -> bool:
    kind, _, source, *_ = _testing.parse_header(datagram)
    return (kind, source) == (CONTRIBUTION, rank)


def test_a_rank_that_was_left_and_has_caught_up_is_waited_for_again():
    net = Modes(2, max_lag=1, peer_timeout_s=2.0)
    for sequence in range(3):
        net.call(0, sequence)
        net.run(DEADLINE_S + JUST_S)
    net.run(2.0)
    assert set(net.done[0]) == {0, 1, 2}
    # Rank 1 is left, and makes all calls now.
    for sequence in range(3):
        net.call(1, sequence)
    net.run(1.0)
    for sequence in range(3, 5):
        for rank in range(2):
            net.call(rank, sequence)
        net.run(1.0)
        assert sequence in net.done[0]
    # Then its program makes none again.
    for sequence in range(5, 8):
        net.call(0, sequence)
        net.run(DEADLINE_S + JUST_S)
    assert set(net.done[0]) == set(range(7))
    net.run(2.0)
    assert set(net.done[0]) == set(range(8))


def test_a_rank_is_not_left_together_with_one_that_is_further_behind():
    net = Modes(3, max_lag=1, peer_timeout_s=2.0)
    # Rank 2 makes no call, and rank 1 only the first two.
    for sequence in range(2):
        net.call(0, sequence)
        net.call(1, sequence)
        net.run(DEADLINE_S + JUST_S)
        assert sequence in net.done[0]
    start = net.now
    net.call(0, 2)
    net.call(0, 3)
    net.run(1.0)
    net.call(0, 4)
    net.until(start + DEADLINE_S + 2.0 + JUST_S)
    # Rank 2 has been waited for long enough, and rank 1 only in call 4, for a second.
    assert set(net.done[0]) == {0, 1, 2, 3}
    net.until(start + 1.0 + DEADLINE_S + 2.0 - JUST_S)
    assert 4 not in net.done[0]
    net.until(start + 1.0 + DEADLINE_S + 2.0 + JUST_S)
    assert 4 in net.done[0]


def test_an_absent_rank_that_comes_back_is_waited_for_in_all_of_its_segments():
    net = Modes(3, "lossy", elements=3 * 1000)
    # Its endpoint takes two more; and three without it make it absent.
    absent_calls = 6
    for sequence in range(1 + absent_calls):
        for rank in range(3):
            if rank < 2 or sequence == 0:
                net.call(rank, sequence)
        net.run(DEADLINE_S + JUST_S)
    last = 1 + absent_calls
    for rank in range(3):
        net.call(rank, last)
    net.collect()
    # The first that comes is a contribution of rank 2; its others come last.
    of_2 = [sent for sent in net.wire if _contributes(sent[1], rank=2)]
    of_others = [sent for sent in net.wire if sent not in of_2]
    first = {to: (to, datagram) for to, datagram in reversed(of_2)}
    net.wire = [*first.values(), *of_others]
    rest = [sent for sent in of_2 if sent not in net.wire]
    assert {to for to, _ in rest} == {0, 1}
    net.run(0.0)
    net.wire += rest
    net.run(DEADLINE_S + JUST_S)
    for rank in range(3):
        message, missing_contributions, missing_results, _ = net.done[rank][last]
        assert (message, missing_contributions, missing_results) == ("", 0, 0)
        np.testing.assert_array_equal(net.buckets[rank, last], 6 + 30 * last)
