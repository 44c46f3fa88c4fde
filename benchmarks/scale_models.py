"""Models of allreduces over a reliable transport: Monte Carlo, not simulated."""

import dataclasses

import numpy as np

# Latency of one direction, without the time on the links. Chosen: half of the round
# trip between two virtual machines of one data centre.
LATENCY_S = 50e-6
# Jumbo frames. Source: MTU 9000 less 28 for IPv4 and UDP; header and tag of wire.h;
# kWireOverheadBytes of network.h.
DATAGRAM_BYTES = 8972
HEADER_BYTES = 40
WIRE_BYTES = 66

# The 99th percentile of the standard normal distribution.
NORMAL_99 = 2.3263478740408408


@dataclasses.dataclass(frozen=True)
class Network:
    """The network of the ranks, and their bucket.

    Attributes:
      ranks: number of ranks.
      gbps: rate of every link, in 10^9 bit/s.
      tail: 99th percentile of the latency over its median.
      mib: size of the bucket. The default permits 1,024 ranks on one machine.
      hold_ms: time for which two ranks keep one draw of the latency. The default is a
        queue of other traffic that lasts for several round trips.
    """

    ranks: int
    gbps: int
    tail: float
    mib: float = 1
    hold_ms: int = 1

    @property
    def bytes_per_s(self) -> float:
        """The rate of a link."""
        return self.gbps * 1e9 / 8

    @property
    def bucket_bytes(self) -> int:
        """The size of one call."""
        return int(self.mib * 2**20)


class Latencies:
    """Draws of the latency, as in ffi/sim/network.cc.

    Args:
      network: the network.
      ways: number of ways in each call.
      calls: number of calls that are computed together.
      rng: source of randomness.
    """

    def __init__(
        self, network: Network, ways: int, calls: int, rng: np.random.Generator
    ) -> None:
        self._sigma = np.log(network.tail) / NORMAL_99
        self._hold_s = network.hold_ms / 1e3
        self._rng = rng
        self._offset = rng.uniform(0, self._hold_s, (calls, ways))
        self._draws = np.empty((0, calls, ways))

    def at(self, times_s: np.ndarray, ways: slice) -> np.ndarray:
        """Returns the latencies of ways, by the times of their entry, in seconds.

        Args:
          times_s: times of entry, by call and way.
          ways: the ways of `times_s`.
        """
        index = ((times_s + self._offset[:, ways]) / self._hold_s).astype(int)
        while index.max() >= len(self._draws):
            normal = self._rng.standard_normal((8, *self._offset.shape))
            more = LATENCY_S * np.exp(self._sigma * normal)
            self._draws = np.concatenate([self._draws, more])
        draws = self._draws[:, :, ways]
        return np.take_along_axis(draws, index[None], axis=0)[0]


def wire_s(network: Network, size_bytes: float) -> float:
    """Returns the time of these bytes on a link, including headers, in seconds."""
    payload = DATAGRAM_BYTES - HEADER_BYTES
    datagrams = np.ceil(size_bytes / payload)
    return float(
        (size_bytes + datagrams * (HEADER_BYTES + WIRE_BYTES)) / network.bytes_per_s
    )


def last_link_s(network: Network, size_bytes: float) -> float:
    """Returns the time of the last datagram on the second link, in seconds."""
    return wire_s(network, min(size_bytes, DATAGRAM_BYTES - HEADER_BYTES))


def ring_times(network: Network, calls: int, rng: np.random.Generator) -> np.ndarray:
    """Computes the ring: each step waits for the data of the previous one.

    All ranks start at the same time and send one message at a time, without loss.

    Returns:
      The time of each call at its slowest rank, in seconds.
    """
    ranks = network.ranks
    latencies = Latencies(network, ranks, calls, rng)
    shard = network.bucket_bytes / ranks
    sending, last = wire_s(network, shard), last_link_s(network, shard)
    here = np.zeros((calls, ranks))  # arrival of the data of the next step
    sent = np.zeros((calls, ranks))  # time at which the link is free
    arrived = np.zeros((calls, ranks))  # the next rank's; a way keeps the order
    for _ in range(2 * (ranks - 1)):
        sent = np.maximum(here, sent) + sending
        arrived = np.maximum(arrived, sent + latencies.at(sent, slice(None)) + last)
        here = np.roll(arrived, 1, axis=1)
    return here.max(axis=1)


def halving_times(network: Network, calls: int, rng: np.random.Generator) -> np.ndarray:
    """Computes recursive halving and doubling, as `ring_times` computes the ring."""
    ranks = network.ranks
    stages = ranks.bit_length() - 1
    latencies = Latencies(network, ranks * stages, calls, rng)
    here = np.zeros((calls, ranks))
    for step in (*range(stages), *reversed(range(stages))):
        size = network.bucket_bytes / 2 ** (step + 1)
        partner = np.arange(ranks) ^ (ranks >> (step + 1))
        ways = slice(step * ranks, (step + 1) * ranks)
        sent = here + wire_s(network, size)
        arrived = sent + latencies.at(sent, ways) + last_link_s(network, size)
        here = np.maximum(sent, arrived[:, partner])
    return here.max(axis=1)
