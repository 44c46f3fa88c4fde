"""How calls and ranks come to their end: who is told what, and what is kept for it."""

import numpy as np
import pytest
from endpoints import Net
from test_promises import LEAVE, RESULT, Modes

from jax_optireduce import _testing


def ones() -> np.ndarray:
    return np.ones(10, np.float32)


def kind_of(datagram: bytes) -> int:
    return _testing.parse_header(datagram)[0]


def lose(net: Net, kind: int) -> int:
    """Loses what is under way of this kind, and returns how much that was."""
    net.collect()
    kept = [sent for sent in net.wire if kind_of(sent[1]) != kind]
    lost = len(net.wire) - len(kept)
    net.wire = kept
    return lost


def test_a_rank_that_leaves_keeps_nothing_for_calls_that_it_will_not_make():
    net = Modes(2)
    for rank in range(2):
        net.call(rank)
    net.run(0.5)
    net.ranks[1].leave(net.now, "its program has ended")
    # Rank 0 does not know yet, and goes on.
    assert lose(net, LEAVE) == 1
    net.call(0, 1)
    net.collect()
    for to, datagram in net.wire:
        net.ranks[to].handle_datagram(net.now, datagram)
    assert net.ranks[1].memory_bytes() == 0


def test_a_rank_has_not_left_before_its_peers_know():
    net = Modes(2, "exact")
    for rank in range(2):
        net.call(rank)
    net.run(0.5)
    net.ranks[0].leave(net.now, "its program has ended")
    assert lose(net, LEAVE) == 1
    assert not net.ranks[0].finished()
    net.run(0.5)
    assert net.ranks[0].finished()


@pytest.mark.parametrize("peer_timeout_s", [0.2, 0.4])
def test_a_rank_that_computes_is_not_dead_however_short_the_timeout(peer_timeout_s):
    net = Net(2, peer_timeout_s=peer_timeout_s)
    net.submit(0, ones())
    net.run(5.0)
    assert net.done[0] == {}
    net.submit(1, ones())
    net.run(0.1)
    assert net.done[0][0][0] == net.done[1][0][0] == ""


class Losing(Net):
    """Loses the datagrams for which `loses(to, kind, source, sequence)`."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.loses = lambda *_: False

    def collect(self):
        super().collect()
        self.wire = [sent for sent in self.wire if not self.loses(*self.facts(sent))]

    @staticmethod
    def facts(sent):
        to, datagram = sent
        kind, _, source, _, _, sequence, *_ = _testing.parse_header(datagram)
        return to, kind, source, sequence


def test_ranks_that_are_one_call_ahead_of_each_other_in_two_collectives_agree():
    net = Losing(3, mismatch_timeout_s=1.0)

    def call(rank, sequence):
        name = "a" if sequence < 10 else "b"
        net.submit(rank, ones(), name=name, sequence=sequence, token=sequence)

    # Rank 1 lacks a sum of the first call of a, and rank 0 one of b.
    net.loses = lambda to, kind, source, sequence: (
        (kind, source) == (RESULT, 2) and (to, sequence) in ((1, 0), (0, 10))
    )
    for rank in range(3):
        call(rank, 0)
        call(rank, 10)
    net.run(0.1)
    assert [sorted(done) for done in net.done] == [[0], [10], [0, 10]]
    call(0, 1)
    call(1, 11)
    net.run(10.0)
    assert [sorted(done) for done in net.done] == [[0], [10], [0, 10]]
    net.loses = lambda *_: False
    while 10 not in net.done[0] or 0 not in net.done[1]:
        net.run(0.01)
    for rank, sequence in ((0, 11), (1, 1), (2, 1), (2, 11)):
        call(rank, sequence)
    net.run(1.0)
    for done in net.done:
        assert [done[token][0] for token in (0, 1, 10, 11)] == [""] * 4


def test_a_call_that_a_peer_has_announced_with_other_shapes_does_not_begin():
    net = Net(2)
    net.submit(1, np.ones(999, np.float32), fingerprint=999)
    net.run(0.1)
    net.silent = {1}
    net.submit(0, np.ones(1000, np.float32), fingerprint=1000)
    net.collect()
    message = net.done[0][0][0]
    assert "the ranks disagree" in message
    assert "float32[999]" in message


@pytest.mark.parametrize("suspend", [False, True])
def test_of_two_ranks_the_error_names_the_one_that_is_silent(suspend):
    net = Net(2, peer_timeout_s=1.0, suspend_on_lag=suspend)
    for rank in range(2):
        net.submit(rank, ones(), carry=True)
    net.run(0.5)
    net.silent = {1}
    for sequence in range(1, 30):
        if net.submit(0, ones(), sequence=sequence, token=sequence, carry=True):
            break
        net.run(0.2)
    message = net.submit(0, ones(), sequence=40, token=40, carry=True)
    assert "rank 1 has been silent for more than 1.0 s (peer_timeout_s)" in message
    assert "go on without" not in message
