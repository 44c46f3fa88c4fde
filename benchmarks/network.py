"""Calls over links of a given rate: how far from the time that the bytes need.

    sudo python benchmarks/network.py

Makes 4 hosts on this machine (`hosts.py` says how; needs root), each with a link to one
switch. A rank on each host runs `bench`: calls of one mode and `lax.psum` over Gloo, in
turns. Once for each loss, TCP congestion control, size and mode.

Prints times in units of W, what the data alone takes on the wire: 2 (N-1) / N * size /
rate, for N ranks. Ethernet, IP and UDP, our header and tag make it 1.057 W at least.
"late" is the share of the data that came with a later call; the last column is the
ratio of the medians, ours / Gloo.

Nothing leaves the machine, and everything is removed at the end. Exit code: 0.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hosts import MISSING, RANKS, Link, environment, network, program

COLUMNS = (
    "size",
    "loss",
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


def measure(link: Link, size: str, mode: str, calls: int) -> dict[str, dict[str, Any]]:
    """Runs `bench` on the hosts.

    Args:
      link: of the network.
      size: of the data, as `bench` reads it.
      mode: of the calls.
      calls: that count, of each kind.

    Returns:
      The results of `bench`, by kind: `mode` and "xla".
    """
    bench = ["-m", "jax_optireduce", "bench", "-b", size, "-e", size, "-n", str(calls)]
    bench += ["--mode", mode, "--against", "xla"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        with network(link), contextlib.ExitStack() as stack:
            ranks = [
                stack.enter_context(
                    program(
                        rank,
                        *(*bench, "--json", str(path)),
                        variables=environment(rank),
                    )
                )
                for rank in range(RANKS)
            ]
            # Only the first says something.
            said, _ = ranks[0].communicate()
            for rank in ranks:
                rank.wait()
        if any(rank.returncode for rank in ranks):
            raise RuntimeError(f"bench has failed: {said}")
        results = json.loads(path.read_text())["results"]
    return {result["mode"]: result for result in results}


def row(link: Link, size: str, mode: str, results: dict[str, dict[str, Any]]) -> str:
    """Returns a line of the table."""
    ours, gloo = results[mode], results["xla"]
    wire_s = 2 * (RANKS - 1) / RANKS * ours["bytes"] * 8 / (link.mbps * 1e6)
    cells = [size, f"{100 * link.loss:g} %", link.congestion, mode]
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
    add("--queue-ms", type=int, default=4, help="before each link (default 4)")
    add("--loss", nargs="+", type=float, default=[0, 0.001, 0.01], metavar="SHARE")
    add("--congestion", nargs="+", default=["cubic", "bbr"], help="default cubic bbr")
    add("--sizes", nargs="+", default=["25M", "1M"], help="default 25M 1M")
    add("--modes", nargs="+", default=["exact", "bounded"], metavar="MODE")
    add("--calls", type=int, default=200, help="that count (default 200)")
    args = parser.parse_args()
    if MISSING or os.geteuid() != 0:
        parser.error(f"needs root, and {' and '.join(MISSING) or 'nothing else'}")
    clean = Link(mbps=args.mbps, queue_ms=args.queue_ms, congestion="")
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * 4}{' ---: |' * (len(COLUMNS) - 4)}")
    for congestion in args.congestion:
        for loss in args.loss:
            link = dataclasses.replace(clean, congestion=congestion, loss=loss)
            for size in args.sizes:
                for mode in args.modes:
                    results = measure(link, size, mode, args.calls)
                    print(row(link, size, mode, results), flush=True)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
