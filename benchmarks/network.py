"""Calls over links of a given rate, relative to the time of the bytes on the wire.

    sudo python benchmarks/network.py

The program makes 4 hosts on this machine (see `hosts.py`; needs root), each with a link
to one switch. A rank on each host runs `bench`: calls of one mode and `lax.psum` over
Gloo, in turns, with donated arrays, as a train step has for its gradients. It does so
for each impairment, TCP congestion control, size and mode. Impairments:

    clean              none
    loss0.1 loss1 ...  loss of that percentage of the packets, at random
    bursts             1 % is lost, in runs of 20 on average
    tail1.5 tail3      each host stalls once a second on average, for 3 or 16 ms: no
                       packet reaches it
    stalls1.5 stalls3  rare and long stalls: one of 80 ms each 5 s on some host, or of
                       550 ms each 8 s; the P99 of Gloo is 1.5 or 3 times its P50 then
                       for 25 MiB at 1 Gbit/s
    slow               the link of the last host has a third of the rate
    late               the last rank computes for 500 ms before each call

It prints times in units of W, the time of the data alone on the wire: 2 (N-1) / N *
size / rate, for N ranks. With Ethernet, IP and UDP, header and tag the least time is
1.057 W. "late" is the share of the data that joined a later call; the last column is
the ratio of the medians, ours / Gloo.

`--apart` measures the calls of Gloo after those of the mode, on new hosts.

No packet leaves the machine, and the hosts are removed at the end. Exit code: 0.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hosts import MISSING, RANKS, Link, Stalls, environment, network, program

# Effects on the links, except those of loss.
IMPAIRMENTS: dict[str, dict[str, Any]] = {
    "clean": {},
    "bursts": {"loss": 0.01, "run": 20},
    "tail1.5": {"stalls": Stalls(per_s=1, median_ms=3)},
    "tail3": {"stalls": Stalls(per_s=1, median_ms=16)},
    "stalls1.5": {"stalls": Stalls(per_s=0.05, median_ms=80)},
    "stalls3": {"stalls": Stalls(per_s=0.03, median_ms=550)},
    "slow": {"slow": 3},
    "late": {},
}
DEFAULT = (
    *("clean", "loss0.1", "loss1", "bursts", "tail1.5", "tail3"),
    *("stalls1.5", "stalls3", "slow", "late"),
)

# Computation of the last rank before each call. Chosen: longer than a call of 25 MiB.
LATE_S = 0.5

COLUMNS = (
    "size",
    "Mbit/s",
    "impairment",
    "TCP",
    "mode",
    "P50 / W",
    "P99 / W",
    "max / W",
    "late",
    "Gloo P50 / W",
    "Gloo P99 / W",
    "P50 / Gloo's",
)


def impaired(link: Link, impairment: str) -> Link:
    """Returns a link with an impairment.

    Raises:
      ValueError: the name is unknown.
    """
    kind, _, percent = impairment.partition("loss")
    if not kind and percent:
        return dataclasses.replace(link, loss=float(percent) / 100)
    if impairment not in IMPAIRMENTS:
        names = ", ".join(IMPAIRMENTS)
        raise ValueError(f"{impairment!r} is none of {names}, or loss1, loss5, ...")
    return dataclasses.replace(link, **IMPAIRMENTS[impairment])


def measure(
    link: Link, impairment: str, size: str, mode: str, calls: int
) -> dict[str, dict[str, Any]]:
    """Runs `bench` on the hosts: calls of a mode and of Gloo, in turns.

    Args:
      link: link without the impairment.
      impairment: name of the impairment.
      size: size of the data, in the syntax of `bench`.
      mode: mode of the calls.
      calls: number of counted calls of each kind.

    Returns:
      The results of `bench`, by kind: `mode` and "xla".
    """
    arguments = [*_arguments(impairment, size, mode, calls), "--against", "xla"]
    return {r["mode"]: r for r in bench(impaired(link, impairment), arguments)}


def measure_apart(
    link: Link, impairment: str, size: str, mode: str, calls: int
) -> dict[str, dict[str, Any]]:
    """As `measure`, each kind of calls on hosts of its own."""
    arguments = _arguments(impairment, size, mode, calls)
    results = {}
    for kind, backend in ((mode, "optireduce"), ("xla", "xla")):
        print(f"{impairment} {size} {kind}", file=sys.stderr, flush=True)
        variables = {"JAX_OPTIREDUCE_BACKEND": backend}
        results[kind] = bench(impaired(link, impairment), arguments, variables)[0]
    ratio = results[mode]["p50_s"] / results["xla"]["p50_s"]
    results[mode]["against_xla"] = {"p50": ratio}
    return results


def _arguments(impairment: str, size: str, mode: str, calls: int) -> list[str]:
    arguments = ["-b", size, "-e", size, "-n", str(calls), "--mode", mode, "--in-place"]
    return arguments + (["--late-s", str(LATE_S)] if impairment == "late" else [])


def bench(
    link: Link, arguments: list[str], variables: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Runs `bench` on new hosts; returns its results."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        command = ("-m", "jax_optireduce", "bench", *arguments, "--json", str(path))
        with network(link), contextlib.ExitStack() as stack:
            ranks = [
                stack.enter_context(
                    program(
                        rank,
                        *command,
                        variables=environment(rank) | dict(variables or {}),
                    )
                )
                for rank in range(RANKS)
            ]
            # Only the first rank has output.
            said, _ = ranks[0].communicate()
            for rank in ranks:
                rank.wait()
        if any(rank.returncode for rank in ranks):
            raise RuntimeError(f"bench has failed: {said}")
        return json.loads(path.read_text())["results"]


def row(
    link: Link,
    impairment: str,
    size: str,
    mode: str,
    results: dict[str, dict[str, Any]],
) -> str:
    """Returns a line of the table."""
    ours, gloo = results[mode], results["xla"]
    wire_s = 2 * (RANKS - 1) / RANKS * ours["bytes"] * 8 / (link.mbps * 1e6)
    cells = [size, str(link.mbps), impairment, link.congestion, mode]
    cells += [f"{ours[name] / wire_s:.2f}" for name in ("p50_s", "p99_s", "max_s")]
    cells += [f"{100 * ours['late_share']:.2f} %"]
    cells += [f"{gloo[name] / wire_s:.2f}" for name in ("p50_s", "p99_s")]
    cells += [f"{ours['against_xla']['p50']:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mbps", type=int, default=1000, help="rate of a link (default 1000)")
    add("--queue-ms", type=int, default=4, help="queue of a link (default 4)")
    add("--impairments", nargs="+", default=DEFAULT, metavar="NAME", help="see above")
    add("--congestion", nargs="+", default=["cubic", "bbr"], help="default cubic bbr")
    add("--sizes", nargs="+", default=["25M", "1M"], help="default 25M 1M")
    add("--modes", nargs="+", default=["exact", "bounded"], metavar="MODE")
    add("--calls", type=int, default=200, help="counted calls (default 200)")
    add("--apart", action="store_true", help="Gloo in a run of its own")
    args = parser.parse_args()
    if MISSING or os.geteuid() != 0:
        parser.error(f"needs root, and {' and '.join(MISSING) or 'nothing else'}")
    try:
        for name in args.impairments:
            impaired(Link(mbps=args.mbps, queue_ms=0, congestion=""), name)
    except ValueError as error:
        parser.error(f"--impairments: {error}")
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * 5}{' ---: |' * (len(COLUMNS) - 5)}")
    cells = itertools.product(
        *(args.congestion, args.impairments, args.sizes, args.modes)
    )
    for congestion, impairment, size, mode in cells:
        link = Link(mbps=args.mbps, queue_ms=args.queue_ms, congestion=congestion)
        measured = measure_apart if args.apart else measure
        results = measured(link, impairment, size, mode, args.calls)
        print(row(link, impairment, size, mode, results), flush=True)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
