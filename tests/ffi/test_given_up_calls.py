"""Calls that a rank has given up: these, for their own reason, and no others."""

import numpy as np
from endpoints import Net


def ones() -> np.ndarray:
    return np.ones(10, np.float32)


def called_once() -> Net:
    """Two ranks that have made call 0."""
    net = Net(2)
    for rank in range(2):
        net.submit(rank, ones())
    net.run(0.1)
    assert [set(done) for done in net.done] == [{0}, {0}]
    return net


def give_up(net: Net, sequence: int) -> None:
    net.ranks[0].give_up(
        net.now, "x", "x: float32[10]", 1, 10, [0, 1], sequence, "interrupted"
    )


def test_a_call_between_two_that_were_given_up_is_made():
    net = called_once()
    give_up(net, 1)
    array = ones()
    assert net.submit(0, array, sequence=2, token=2) == ""
    give_up(net, 3)
    net.run(0.1)
    for sequence in (1, 2, 3):
        net.submit(1, ones(), sequence=sequence, token=sequence)
        net.run(0.1)
    assert "interrupted" in net.done[1][1][0]
    assert net.done[0][2][0] == net.done[1][2][0] == ""
    np.testing.assert_array_equal(array, 2)
    assert "interrupted" in net.done[1][3][0]


def test_a_call_before_one_in_which_the_ranks_disagree_was_no_disagreement():
    net = called_once()
    give_up(net, 1)
    net.run(0.1)
    for rank, fingerprint in enumerate((1, 2)):
        net.submit(rank, ones(), sequence=2, token=2, fingerprint=fingerprint)
    net.run(0.1)
    assert all("the ranks disagree" in done[2][0] for done in net.done)
    advice = "Every rank must"
    assert all(advice in done[2][0] for done in net.done)
    assert net.submit(1, ones(), sequence=1, token=1) == ""
    net.run(0.1)
    assert "call 1 of x" in net.done[1][1][0]
    assert advice not in net.done[1][1][0], net.done[1][1][0]
