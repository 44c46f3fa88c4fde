"""The time of train steps whose calls overlap with computation.

    sudo python benchmarks/step_overlap.py

The program makes two hosts on this machine (see `hosts.py`; needs root), trains the
network of `examples/overlapped_steps.py` with each of its steps, a rank on each host,
and prints a line of a table for each: the median time of a step. The first line is the
computation alone: two programs of one rank each, which share the cores as the ranks of
the other lines do. `--batch` sets the computation, `--width` and `--mbps` the transfer.
A line takes a quarter of a minute.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hosts import (
    COORDINATOR_PORT,
    MISSING,
    Link,
    address,
    environment,
    network,
    program,
)

PROGRAM = Path(__file__).parents[1] / "examples" / "overlapped_steps.py"

RANKS = 2

# Longest time of a training, in seconds. Chosen: ten times that on two idle cores.
LIMIT_S = 150

ALONE = "computation alone"
BY_LAYER = "plain, a bucket for each layer"
LINES = (ALONE, "plain", BY_LAYER, "delayed", "ACCO", "DeAR")


def variables(line: str, rank: int, width: int) -> dict[str, str]:
    """Returns the variables of a rank."""
    own = {"PYTHONPATH": str(PROGRAM.parent)}
    if line == ALONE:
        coordinator = {"JAX_COORDINATOR_ADDRESS": f"{address(rank)}:{COORDINATOR_PORT}"}
        return environment(0, 1) | coordinator | own
    if line == BY_LAYER:
        own["JAX_OPTIREDUCE_BUCKET_BYTES"] = str(4 * width * (width + 1))
    return environment(rank, RANKS) | own


def median_ms(line: str, link: Link, width: int, arguments: Sequence[str]) -> float:
    """Trains on new hosts; returns the mean over the ranks of their median steps.

    Raises:
      RuntimeError: a rank has failed.
    """
    step = "plain" if line in (ALONE, BY_LAYER) else line
    command = (str(PROGRAM), "--step", step, "--width", str(width), *arguments)
    medians = []
    with network(link, RANKS), contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                program(rank, *command, variables=variables(line, rank, width))
            )
            for rank in range(RANKS)
        ]
        for rank in ranks:
            output, _ = rank.communicate(timeout=LIMIT_S)
            found = re.search(r"steps of (\S+) ms, the median", output)
            if not found:
                raise RuntimeError(f"{line}: a rank has failed:\n{output}")
            medians.append(float(found[1]))
    return sum(medians) / RANKS


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--lines", nargs="+", choices=LINES, default=LINES, metavar="LINE")
    add("--mode", default="exact", help="of the calls (default exact)")
    add("--steps", type=int, default=40, help="default 40")
    add("--batch", type=int, default=1024, help="of each rank (default 1024)")
    add("--layers", type=int, default=8, help="default 8")
    add("--width", type=int, default=256, help="of the hidden layers (default 256)")
    add("--mbps", type=int, default=250, help="rate of a link (default 250)")
    args = parser.parse_args()
    if MISSING:
        parser.error(f"needs {', '.join(MISSING)}")
    link = Link(mbps=args.mbps, queue_ms=10, congestion="cubic")
    named = {name: getattr(args, name) for name in ("mode", "steps", "batch", "layers")}
    arguments = [f"--{name}={value}" for name, value in named.items()]
    print("| step | ms a step |")
    print("| --- | --: |")
    for line in args.lines:
        ms = median_ms(line, link, args.width, arguments)
        print(f"| {line} | {ms:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
