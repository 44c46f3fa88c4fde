"""Rates of one, two and four lanes whose threads have a budget of processor time.

    sudo python benchmarks/lanes.py
    sudo python benchmarks/lanes.py --whole --ranks 2 --mtu 9000

A lane takes a core at a few Gbit/s, so that lanes need cores to add up. This machine
may have fewer: here the kernel gives each lane's thread a fifth of a core, as the cores
of a larger machine give each lane a whole one. Hosts in network namespaces (see
`hosts.py`; needs root, and the `cpu` controller of control groups, version 1) run
`bench` over links without a limit of their own.

It prints the median time of a call, the rate of the data that a rank sends, and the
ratio to the rate of one lane. Exit code: 0.

With `--whole` there is no budget: each rank has a core, or shares it with as few as can
be, and calls of Gloo are in turns with ours. The last column is then the ratio to
Gloo's rate.
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hosts import MISSING, NAME, Link, environment, network, program

# Chosen: a fifth of a core for 8 lanes leaves cores of two for the rest. The period is
# a small part of a call.
PERIOD_US, QUOTA_US = 5000, 1000
GROUPS = Path("/sys/fs/cgroup/cpu")
# Longest wait for the lanes. Chosen: several starts of JAX on a busy machine.
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
        for group in filter(Path.exists, groups):
            for thread in (group / "tasks").read_text().split():
                (GROUPS / "tasks").write_text(thread)
            group.rmdir()


def measure(lanes: int, size: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the result of `bench` with so many lanes."""
    link = Link(mbps=0, queue_ms=0, congestion="cubic", mtu=args.mtu)
    with contextlib.ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bench.json"
        command = ["-m", "jax_optireduce", "bench", "-b", size, "-e", size]
        command += ["-n", str(args.calls), "--mode", "exact", "--in-place"]
        command += ["--json", str(path), *(["--against", "xla"] if args.whole else [])]
        stack.enter_context(network(link, args.ranks))
        ranks = []
        for rank in range(args.ranks):
            variables = environment(rank, args.ranks)
            variables["JAX_OPTIREDUCE_LANES"] = str(lanes)
            started = program(rank, *command, variables=variables)
            ranks.append(stack.enter_context(started))
        if args.whole:
            for rank, process in enumerate(ranks):
                os.sched_setaffinity(process.pid, {rank % (os.cpu_count() or 1)})
        else:
            stack.enter_context(budgets([rank.pid for rank in ranks], lanes))
        # Only the first rank has output.
        ranks[0].communicate()
        for rank in ranks:
            rank.wait()
        results = json.loads(path.read_text())["results"]
        return next(result for result in results if result["mode"] == "exact")


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--whole", action="store_true", help="without a budget, see above")
    add("--ranks", type=int, default=2, help="hosts (default 2)")
    add("--mtu", type=int, default=1500, help="of the links (default 1500)")
    add("--lanes", nargs="+", type=int, default=[1, 2, 4], help="default 1 2 4")
    add("--sizes", nargs="+", default=["1M", "16M"], help="default 1M 16M")
    add("--calls", type=int, default=40, help="counted calls (default 40)")
    args = parser.parse_args()
    if MISSING or os.geteuid() != 0:
        parser.error(f"needs root, and {' and '.join(MISSING) or 'nothing else'}")
    if not args.whole and not (GROUPS / "tasks").exists():
        parser.error(f"needs control groups, version 1, at {GROUPS}")
    ratio = "of Gloo's" if args.whole else "of one lane's"
    print(f"| size | lanes | P50, ms | Gbit/s | {ratio} |\n| --- |{' ---: |' * 4}")
    for size in args.sizes:
        one_lane = None
        for lanes in args.lanes:
            found = measure(lanes, size, args)
            sent = 2 * (args.ranks - 1) / args.ranks * found["bytes"]
            rate = sent * 8 / found["p50_s"] / 1e9
            one_lane = one_lane or rate
            against = found["against_xla"]
            times = 1 / against["p50"] if against else rate / one_lane
            cells = [size, str(lanes), f"{1e3 * found['p50_s']:.1f}", f"{rate:.2f}"]
            print(f"| {' | '.join([*cells, f'{times:.2f}'])} |", flush=True)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
