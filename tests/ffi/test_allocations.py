"""The hot path: ports and endpoints in warm calls make no allocation per datagram."""

import pytest

import optireduce_testing as native

WAIT, DROP, CARRY = 0, 1, 2
MODES = {
    "exact": (WAIT, WAIT),
    "agreed": (CARRY, WAIT),
    "bounded": (CARRY, CARRY),
    "lossy": (DROP, DROP),
}


def test_the_counter_counts():
    assert native.counted_allocations(1000) >= 1000


@pytest.mark.parametrize("mode", MODES)
def test_a_datagram_needs_no_allocation(mode):
    def count(elements):
        return native.allocations(*MODES[mode], 4, elements, 3, 2)

    datagrams, allocations = count(1 << 16)
    more_datagrams, more_allocations = count(1 << 20)
    more = more_datagrams - datagrams
    assert more > 20_000
    # A call allocates some 50 times on each rank for its peers and stages, independent
    # of its size. Chosen: leaves room for a list that grows by doubling on each rank,
    # and is far below one allocation for each batch or acknowledgement.
    assert more_allocations - allocations < more / 150
