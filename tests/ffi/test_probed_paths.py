"""Probes of several lengths on paths that lose long datagrams, in virtual time."""

import pytest
from session import Session

LENGTHS = [1472, 1400, 1252, 548]


class Narrow(Session):
    """Loses datagrams that are longer than the path to their receiver carries.

    Attributes:
        limits: the longest ones that arrive, in bytes, by receiver.
        lengths: those that rank 0 has sent, as (receiver, bytes).
    """

    def __init__(self, limits):
        super().__init__(3, datagram_bytes_max=LENGTHS[0])
        self.limits = limits
        self.lengths = set()

    def collect(self):
        super().collect()
        self.lengths |= {(to, len(datagram)) for to, datagram in self.wire if to != 0}
        self.wire = [
            (to, datagram)
            for to, datagram in self.wire
            if len(datagram) <= self.limits.get(to, LENGTHS[0])
        ]

    def probe(self, lengths):
        """Lets rank 0 probe its paths; returns the lengths of long datagrams sent."""
        self.lengths.clear()
        self.ranks[0].probe_paths(lengths)
        self.run(0.2)
        return {(to, length) for to, length in self.lengths if length >= LENGTHS[-1]}


def test_a_path_is_proven_by_its_longest_datagram():
    session = Narrow({2: 1300})
    unheard = (False, False, 0)
    assert session.ranks[0].unproven_paths() == {1: unheard, 2: unheard}
    session.probe(LENGTHS[:1])
    assert session.ranks[0].unproven_paths() == {2: (True, True, 0)}


@pytest.mark.parametrize("again", [False, True])
def test_the_longest_acknowledged_length_of_each_path_is_known(again):
    session = Narrow({1: 1400, 2: 1300})
    assert session.probe(LENGTHS) == {(to, n) for to in (1, 2) for n in LENGTHS}
    if again:
        # Lengths that have passed are not sent again.
        assert session.probe(LENGTHS) == {(1, 1472), (2, 1472), (2, 1400)}
    found = {1: (True, True, 1400), 2: (True, True, 1252)}
    assert session.ranks[0].unproven_paths() == found
