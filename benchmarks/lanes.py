"""Rates of one, two and four lanes whose threads have a budget of processor time.

    sudo python benchmarks/lanes.py

A lane takes a core at a few Gbit/s, so that lanes need cores to add up. This machine
may have fewer: here the kernel gives each lane's thread a fifth of a core, as the cores
of a larger machine give each lane a whole one. Two hosts in network namespaces (see
`hosts.py`; needs root, and the `cpu` controller of control groups, version 1) run
`bench` over links that are much faster than that.

It prints the median time of a call, the rate of the data in each direction, and the
ratio to the rate of one lane. Exit code: 0.
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hosts import MISSING, NAME, Link, environment, network, program

RANKS = 2
# Chosen: a fifth of a core for 8 lanes leaves cores of two for the rest. The period is
# a small part of a call.
PERIOD_US, QUOTA_US = 5000, 1000
# Chosen: above the rate of the fastest lanes here.
LINK = Link(mbps=20_000, queue_ms=4, congestion="cubic")
GROUPS = Path("/sys/fs/cgroup/cpu")
START_S = 60


def lane_threads(process: int) -> list[str]:
    """Returns the threads of the lanes of a process."""
    names = Path(f"/proc/{process}/task").glob("*/comm")
    return [n.parent.name for n in names if n.read_text() == "optireduce-lane\n"]


@contextlib.contextmanager
def budgets(processes: list[int], lanes: int) -> Iterator[None]:
    """Waits for the lanes of the processes, and limits the time of each thread."""
    end = time.monotonic() + START_S
    threads: list[str] = []
    while len(threads) < lanes * len(processes):
        if time.monotonic() > end:
            raise RuntimeError(f"only {len(threads)} lanes have started")
        time.sleep(0.05)
        threads = [thread for each in processes for thread in lane_threads(each)]
    groups = [GROUPS / f"{NAME}-{thread}" for thread in threads]
    try:
        for group, thread in zip(groups, threads, strict=True):
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
            (group / "tasks").write_text(thread)
        yield
    finally:
        for group in groups:
            for thread in (group / "tasks").read_text().split():
                (GROUPS / "tasks").write_text(thread)
            group.rmdir()


def measure(lanes: int, size: str, calls: int) -> dict[str, float]:
    """Returns the result of `bench` with so many lanes."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder) / "bench.json"
        command = ["-m", "jax_optireduce", "bench", "-b", size, "-e", size]
        command += ["-n", str(calls), "--mode", "exact", "--in-place"]
        command += ["--json", str(path)]
        stack.enter_context(network(LINK, RANKS))
        ranks = [
            stack.enter_context(
                program(
                    rank,
                    *command,
                    variables=environment(rank, RANKS)
                    | {"JAX_OPTIREDUCE_LANES": str(lanes)},
                )
            )
            for rank in range(RANKS)
        ]
        with budgets([rank.pid for rank in ranks], lanes):
            ranks[0].communicate()
            ranks[1].wait()
        return json.loads(path.read_text())["results"][0]


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--lanes", nargs="+", type=int, default=[1, 2, 4], help="default 1 2 4")
    add("--sizes", nargs="+", default=["1M", "16M"], help="default 1M 16M")
    add("--calls", type=int, default=40, help="counted calls (default 40)")
    args = parser.parse_args()
    if MISSING or os.geteuid() != 0:
        parser.error(f"needs root, and {' and '.join(MISSING) or 'nothing else'}")
    if not (GROUPS / "tasks").exists():
        parser.error(f"needs control groups, version 1, at {GROUPS}")
    print(
        "| size | lanes | P50, ms | Gbit/s | of one lane's |\n| --- |" + " ---: |" * 4
    )
    for size in args.sizes:
        first = None
        for lanes in args.lanes:
            found = measure(lanes, size, args.calls)
            # Each of two ranks sends half of the data in each stage.
            rate = found["bytes"] * 8 / found["p50_s"] / 1e9
            first = first or rate
            cells = [size, str(lanes), f"{1e3 * found['p50_s']:.1f}", f"{rate:.2f}"]
            print(f"| {' | '.join([*cells, f'{rate / first:.2f}'])} |", flush=True)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
