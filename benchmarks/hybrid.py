"""Steps on a hybrid mesh, 2 hosts of 2 devices, with emulated links between the hosts.

    sudo python benchmarks/hybrid.py

The program makes the hosts on this machine (see `hosts.py`; needs root), with links of
the given rate. A process on each has two devices: axis "slow" joins the hosts, axis
"fast" the devices of a host. They train a network of matrices with SGD, in several
forms, in turns:

    sharded   plain jit; the devices of a host share the parameters (FSDP), "slow" is
              manual, and the gradients are averaged over it
    copied    all axes are manual, each device has all parameters, and the gradients are
              averaged over both axes

with `lax.pmean` over Gloo, or with calls of this package. "computation" is a step
without the average. The table has the median of the steps, those bytes that a host
sends in a step (from the counters of its link), both times as a ratio to `lax.pmean`,
and the share of the data that was late.

No packet leaves the machine, and the hosts are removed at the end. Exit code: 0.
"""

import argparse
import contextlib
import json
import os
from pathlib import Path

from hosts import MISSING, Link, environment, network, program

HOSTS = 2
DEVICES = 2
FLAGS = f"--xla_force_host_platform_device_count={DEVICES}"
PROGRAM = str(Path(__file__).with_name("hybrid_rank.py"))

COLUMNS = (
    *("parameters", "average", "step, ms", "step / `lax.pmean`"),
    *("sent by a host, MB", "sent / `lax.pmean`", "late"),
)


def measure(link: Link, steps: int, width: int) -> list[dict[str, object]]:
    """Returns the lines of the first host, one for each form."""
    with network(link, HOSTS), contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                program(
                    rank,
                    *(PROGRAM, str(steps), str(width)),
                    variables={**environment(rank, HOSTS), "XLA_FLAGS": FLAGS},
                )
            )
            for rank in range(HOSTS)
        ]
        said, _ = ranks[0].communicate()
        for rank in ranks:
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank has failed: {said}")
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def table(lines: list[dict[str, object]]) -> str:
    """Returns the table of the forms, each relative to `lax.pmean`."""
    rows = [f"| {' | '.join(COLUMNS)} |", "| --- | --- |" + " ---: |" * 5]
    bases = {x["parameters"]: x for x in lines if x["average"] == "`lax.pmean`"}
    for line in lines:
        base = bases[line["parameters"]]
        cells = [line["parameters"], line["average"], f"{1e3 * line['step_s']:.0f}"]
        cells += [f"{line['step_s'] / base['step_s']:.2f}"]
        cells += [f"{line['sent_bytes'] / 1e6:.1f}"]
        cells += [f"{line['sent_bytes'] / base['sent_bytes']:.2f}"]
        cells += [f"{100 * line['late']:.2f} %"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mbps", type=int, default=1000, help="rate of a link (default 1000)")
    add("--queue-ms", type=int, default=4, help="queue of a link (default 4)")
    add("--congestion", default="cubic", help="TCP's (default cubic)")
    add("--steps", type=int, default=30, help="counted steps of a form (default 30)")
    add("--width", type=int, default=1024, help="of the matrices (default 1024)")
    args = parser.parse_args()
    if MISSING or os.geteuid() != 0:
        parser.error(f"needs root, and {' and '.join(MISSING) or 'nothing else'}")
    link = Link(mbps=args.mbps, queue_ms=args.queue_ms, congestion=args.congestion)
    lines = measure(link, args.steps, args.width)
    print(table(lines))
    size = lines[0]["gradient_bytes"] / 1e6
    print(f"gradients of {size:.1f} MB, links of {args.mbps} Mbit/s, ", end="")
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
