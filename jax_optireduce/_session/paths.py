"""The proof that datagrams pass between all ranks, and the search for their length.

A kernel knows the MTU of its interfaces, not that of every link on the way. So each
rank tests the length that the interfaces carry, and where it does not pass, shorter
ones at the same time: as RFC 8899, with a table of lengths (RFC 1191, section 7).
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax_optireduce._errors import RendezvousError
from jax_optireduce._jax import coordination
from jax_optireduce._session import options

# Longest time for the proof that datagrams pass, in seconds. Chosen: hundreds of round
# trips, and fifty probes, so that half of them may be lost.
_PROVE_TIMEOUT_S = 5.0

# Time of the proof after which shorter datagrams are tested, too, in seconds. Chosen:
# round trips across continents, so that most starts are without these; forty probes
# are left.
_SHORTER_AFTER_S = 1.0

# Times between probes, in seconds. Chosen: a round trip within a data centre, and a
# hundred across continents.
_PROBE_WAIT_MIN_S = 0.001
_PROBE_WAIT_MAX_S = 0.1

# MTUs of links, in bytes. Source: the documentation of the clouds, see docs/deploy.md
# (8896, 8500, 3900, 1460); Ethernet (9000, 1500); RFC 8200 (1280). Tunnels: VXLAN (50
# less than 9001 and 1500), IP in IP (1480), WireGuard (1420), a usual one of IPsec
# (1400).
_MTUS = (9000, 8951, 8896, 8500, 3900, 1500, 1480, 1460, 1450, 1420, 1400, 1280)


class Path(NamedTuple):
    """A path that the longest datagrams have not been seen to pass.

    Attributes:
      lane: of this process.
      rank: the other end.
      heard: whether a datagram of it has arrived.
      answered: whether it has acknowledged a short one.
      passed_bytes: the longest long one that it has acknowledged; 0 without one.
    """

    lane: int
    rank: int
    heard: bool
    answered: bool
    passed_bytes: int


class Proof(NamedTuple):
    """The result of one rank for all its paths.

    Attributes:
      rank: of this process.
      to: the other end of the path with the shortest datagrams.
      passed_bytes: the longest datagrams that pass all of them, in bytes.
      error: why none do, or "".
    """

    rank: int
    to: int
    passed_bytes: int
    error: str


def default_datagram_bytes(addresses: Sequence[str], receive_buffer_bytes: int) -> int:
    """Returns the longest datagram, apart from the MTU.

    Args:
      addresses: of all ranks.
      receive_buffer_bytes: the smallest one of all ranks.
    """
    network = options.DATAGRAM_BYTES_MAX
    if len(set(addresses)) > 1:
        return network
    peers = max(len(addresses) - 1, 1)
    held = receive_buffer_bytes // peers // options.DATAGRAMS_OF_BUFFER // 8 * 8
    return max(network, min(held, options.DATAGRAM_BYTES_MAX_ON_ONE_HOST))


def shorter_datagrams(datagram_bytes: int, header_bytes: int) -> list[int]:
    """Returns the lengths to try where longer datagrams do not pass, longest first.

    Args:
      datagram_bytes: the length that the interfaces carry.
      header_bytes: headers of IP and UDP.
    """
    lengths = [mtu - header_bytes for mtu in _MTUS] + [options.DATAGRAM_BYTES_MIN]
    return [length for length in lengths if length < datagram_bytes]


def prove(
    native: Any,
    own: int,
    connected: str,
    peers: Sequence[tuple[str, Sequence[int]]],
    lengths: Sequence[int],
    timeout_s: float,
) -> Proof:
    """Waits until the longest datagrams have passed between this rank and each other.

    Args:
      native: the communicator, connected.
      own: this rank.
      connected: key under which the processes publish that they are, too.
      peers: address and ports of every rank.
      lengths: of datagrams: the longest of the session first, then those to try.
      timeout_s: longest wait for a process that starts late, in seconds.

    Raises:
      RendezvousError: a process has not come.
    """
    coordination.publish(f"{connected}/{own}", b"1")
    paths = _probe(native, lengths[:1], _SHORTER_AFTER_S)
    if paths:
        # These may have started late. After the last one, the time begins again.
        for rank in {path.rank for path in paths}:
            coordination.await_published(f"{connected}/{rank}", rank, timeout_s)
        paths = _probe(native, lengths[:1], _SHORTER_AFTER_S)
    if paths:
        paths = _probe(native, lengths, _PROVE_TIMEOUT_S - _SHORTER_AFTER_S)
    if not paths:
        return Proof(own, own, lengths[0], "")
    blocked = [path for path in paths if not path.passed_bytes]
    if blocked:
        error = f"rank {own}: {_describe_blocked(blocked, peers, lengths[-1])}"
        return Proof(own, blocked[0].rank, 0, error)
    least = min(paths, key=lambda path: path.passed_bytes)
    return Proof(own, least.rank, least.passed_bytes, "")


def _probe(native: Any, lengths: Sequence[int], limit_s: float) -> list[Path]:
    """Sends probes until the longest datagrams pass, or for `limit_s` seconds.

    Returns:
      The paths that they do not pass.
    """
    wait_s = _PROBE_WAIT_MIN_S
    until = time.monotonic() + limit_s
    while True:
        native.probe_paths(lengths)
        # Data is lost, too: the probes are repeated.
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _PROBE_WAIT_MAX_S)
        paths = [Path(*path) for path in native.unproven_paths()]
        if not paths or time.monotonic() >= until:
            return paths


def agree(own: Proof, proofs: Sequence[Proof]) -> Proof:
    """Returns the proof with the shortest datagrams: the same one on all ranks.

    Args:
      own: of this rank.
      proofs: of all ranks.

    Raises:
      RendezvousError: a path carries nothing; that of this rank comes first.
    """
    for proof in (own, *proofs):
        if proof.error:
            raise RendezvousError(proof.error)
    return min(proofs, key=lambda proof: proof.passed_bytes)


def _describe_blocked(
    paths: Sequence[Path],
    peers: Sequence[tuple[str, Sequence[int]]],
    datagram_bytes: int,
) -> str:
    """Describes the first path that datagrams do not pass, and counts the others."""
    first = paths[0]
    address, ports = peers[first.rank]
    place = f"rank {first.rank} at {address}, UDP port {ports[first.lane]}"
    others = {path.rank for path in paths} - {first.rank}
    also = f" (and of {len(others)} more)" if others else ""
    if first.answered:
        return (
            f"datagrams of {datagram_bytes} bytes to {place}{also} do not arrive, "
            "short ones do: a link on the way has a smaller MTU. Correct it."
        )
    blocked = (
        "Does UDP pass between these hosts, in both directions and on all ports, or on "
        "those of port_range? Is the address one that others reach (interface, "
        "bind_address)?"
    )
    if first.heard:
        return (
            f"{place}{also} answers no datagram within "
            f"{_PROVE_TIMEOUT_S:g} s, though its own arrive. {blocked}"
        )
    return (
        f"no datagram ever came from {place}{also} in {_PROVE_TIMEOUT_S:g} s. {blocked}"
    )
