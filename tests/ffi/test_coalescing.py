"""The time for which received datagrams may wait for the next turn of the driver."""

import numpy as np
import pytest
from session import Session

MIB = 1 << 20
# Of coalescing.cc: the longest time, in seconds, and the bytes that a call lacks.
COALESCING_MAX_S = 350e-6
MISSING_BYTES_MIN = MIB


class Link(Session):
    """Two ranks; each datagram takes the time of its bytes.

    Attributes:
        times: time for which datagrams may wait at rank 0, after each delivery.
        arrived: bytes that had arrived at rank 0 by then.
    """

    def __init__(self, mbps: int, elements: int):
        super().__init__(2, elements=elements)
        self.byte_s = 8e-6 / mbps
        self.times: list[float] = []
        self.arrived = [0]

    def deliver_next(self):
        to, datagram = self.wire[0]
        # Half of the bytes go to either rank, over links of their own.
        self.now += len(datagram) * self.byte_s / 2
        super().deliver_next()
        for endpoint in self.ranks:
            if endpoint.poll_timeout() <= self.now:
                endpoint.handle_timeout(self.now)
        self.times.append(self.ranks[0].coalescing_time())
        self.arrived.append(self.arrived[-1] + (len(datagram) if to == 0 else 0))

    def calls(self, sequence: int):
        for rank in range(2):
            self.call(rank, sequence)
        self.run()
        assert sequence in self.done[0]


def test_datagrams_wait_in_the_middle_of_a_large_call_over_a_slow_link():
    link = Link(mbps=1000, elements=2 * MIB)
    link.calls(0)
    link.times, link.arrived = [], [0]
    link.calls(1)
    assert max(link.times) == pytest.approx(COALESCING_MAX_S)
    # A rank gets a half of the bucket twice: contributions to its shard, and sums.
    assert link.arrived[-1] >= link.elements * 4
    last = link.arrived[-1] - MISSING_BYTES_MIN
    by_bytes = zip(link.arrived[1:], link.times, strict=True)
    assert max(time for arrived, time in by_bytes if arrived > last) == 0
    assert sum(time > 0 for time in link.times) > len(link.times) / 2


@pytest.mark.parametrize(
    ("mbps", "elements"), [(40_000, 2 * MIB), (1000, MISSING_BYTES_MIN // 8)]
)
def test_datagrams_do_not_wait_on_fast_links_or_in_small_calls(mbps, elements):
    link = Link(mbps, elements)
    for sequence in range(2):
        link.calls(sequence)
    assert max(link.times) == 0


def test_a_small_call_beside_a_large_one_does_not_wait():
    link = Link(mbps=1000, elements=2 * MIB)
    link.calls(0)
    link.call(0, 1)
    link.call(1, 1)
    small = np.ones(100, np.float32)
    # The other rank never makes it.
    assert link.submit(0, small, token=7, name="small") == ""
    link.times = []
    link.run()
    assert max(link.times) == 0


def test_nothing_waits_for_a_rank_that_has_not_called():
    link = Link(mbps=1000, elements=2 * MIB)
    link.calls(0)
    link.call(0, 1)
    link.times = []
    link.run()
    assert max(link.times) == 0
