"""The number of lanes of a session, by the cores and the links of its hosts.

A lane is one thread with one flow to each peer. One is enough for a slow link; a fast
one needs several threads, and flows, since clouds limit the rate of each.
"""

import collections
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

from jax_optireduce._session import host_facts

# Chosen: the network may take half of a host, the rest computes. A large call needs
# about as much processor time on several lanes as on one.
# Source: docs/figures.md, "Lanes".
_CORES_PER_LANE = 2

# Rate of a lane with a core of its own, both ways at once, in 10^6 bit/s, at an MTU of
# 1500.
# Source: docs/figures.md, "One lane".
_LANE_MBPS = 3000

# Chosen: 24 Gbit/s. Faster hosts are left to a measurement by their users.
_LANES_MAX = 8


class Share(NamedTuple):
    """The means of one process; JSON carries it to the others.

    Attributes:
      host: the same for the processes of a host.
      address: of the process.
      cores: numbers of the cores on which it may run.
      quota_cores: cores of its container's quota; 0 without one.
      link_mbps: speed of the link of its address, in 10^6 bit/s; 0 if it is unknown.
      ports: of the option `port_range`; 0 if any will do.
    """

    host: str
    address: str
    cores: Sequence[int]
    quota_cores: float
    link_mbps: int
    ports: int


def own_share(address: str, interface: str, ports: tuple[int, int]) -> Share:
    """Returns the means of this process.

    Args:
      address: of this process.
      interface: name of the one with the address; "" if there is none.
      ports: the first and the last one that it may take; 0, 0: any.
    """
    quota = host_facts.quota_cores()
    return Share(
        host=host_facts.boot() or address,
        address=address,
        cores=sorted(os.sched_getaffinity(0)),
        quota_cores=quota if math.isfinite(quota) else 0,
        link_mbps=host_facts.link_mbps(interface) if interface else 0,
        ports=ports[1] - ports[0] + 1 if ports[1] else 0,
    )


def choose(shares: Sequence[Share]) -> int:
    """Returns the number of lanes of each process, the least of all hosts.

    Args:
      shares: of the ranks.
    """
    if len(shares) == 1:
        return 1
    hosts, addresses = collections.defaultdict(list), collections.defaultdict(list)
    for share in shares:
        hosts[share.host].append(share)
        addresses[share.address].append(share)
    by_cores = map(_by_cores, hosts.values())
    by_link = map(_by_link, addresses.values())
    return max(1, min(_LANES_MAX, *by_cores, *by_link))


def _by_cores(shares: Sequence[Share]) -> int:
    """Returns the lanes of each process of a host, as its cores allow."""
    cores = len({core for share in shares for core in share.cores})
    usable = min([cores, *(s.quota_cores for s in shares if s.quota_cores)])
    return int(usable / len(shares) / _CORES_PER_LANE)


def _by_link(shares: Sequence[Share]) -> int:
    """Returns the lanes of each process of an address, as its link and ports allow."""
    processes = len(shares)
    links = [s.link_mbps / processes / _LANE_MBPS for s in shares if s.link_mbps]
    ports = [share.ports // processes for share in shares if share.ports]
    return min([*map(math.ceil, links), *ports], default=_LANES_MAX)
