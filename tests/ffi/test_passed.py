"""Lossy calls that other ranks are past: they end at once, unless one is not."""

from test_promises import DEADLINE_S, JUST_S, Modes

AHEAD = 3


def test_a_call_ends_at_once_when_all_others_but_an_absent_rank_are_past_it():
    net = Modes(3, "lossy")
    for rank in range(3):
        net.call(rank)
    net.run(0.5)
    # Rank 2 is absent after some calls without it.
    net.silent = {2}
    for sequence in range(1, 6):
        for rank in range(2):
            net.call(rank, sequence)
        net.run(2 * DEADLINE_S)
    for sequence in range(6, 6 + AHEAD):
        net.call(1, sequence)
        net.run(0.001)
    net.call(0, 6)
    net.collect()
    assert 6 in net.done[0]


def test_a_call_does_not_end_at_once_while_one_other_rank_is_not_past_it():
    net = Modes(3, "lossy")
    for rank in range(3):
        net.call(rank)
    net.run(0.5)
    start = net.now
    for sequence in range(1, 1 + AHEAD):
        net.call(1, sequence)
        net.run(0.001)
    net.call(0, 1)
    net.until(start + DEADLINE_S / 4)
    assert 1 not in net.done[0]
    net.until(start + DEADLINE_S + JUST_S)
    assert 1 in net.done[0]
