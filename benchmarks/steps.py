"""Mean length of a step over the number of ranks, in virtual time.

    python benchmarks/steps.py steps.jsonl
    python benchmarks/steps.py steps.jsonl --ranks 4 8 --troubles pauses --max-lags 1 4
    python benchmarks/steps.py steps.jsonl --modes bounded exact-delayed bounded-delayed

The program simulates training loops: 40 ms of computation and a call of 400 kB in each
step, on links of 250 Mbit/s. In the delayed modes the computation begins together with
the call of the step before, as with `begin` and `end`. The production protocol makes
the calls, and the simulator checks every sum. The program appends a line to the file
for each case, and omits cases with a line in the file; then it prints a table of the
file. Exit code: 0.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scale import simulate

RANKS = (4, 8, 16, 32, 64)
# As in benchmarks/tta.py: ranks that pause independently, for 0.5 s on average, and TCP
# bursts that fill a share of the link to every rank.
TROUBLES = {
    "none": "",
    "pauses": "straggle_ppm=50000 straggle_us=1000000",
    "bursts0.4": "tcp_load_percent=40",
    "bursts0.7": "tcp_load_percent=70",
}
MODES = {
    "exact": "mode=exact",
    # The defaults of jax_optireduce.init.
    "bounded": "mode=bounded on_lag=catch_up late_budget_ppm=100000 "
    "reduce_scatter_deadline_us=500000 all_gather_deadline_us=500000",
}
MODES |= {f"{name}-delayed": f"{options} overlap=1" for name, options in MODES.items()}
MAX_LAG = 2  # the default
# Chosen: as many as a run of benchmarks/tta.py; a pause in seven of each rank.
STEPS = 150
BURSTS_END_S = 300  # Chosen: later than the last step
PROGRAM = (
    f"seed=1 calls={STEPS} sequential=1 compute_us=40000 elements=100000 "
    f"rate_mbps=250 unprotected=1 faults_end_us={BURSTS_END_S * 1_000_000}"
)


class Case(NamedTuple):
    """A simulated run; the names of a line of the file."""

    trouble: str
    ranks: int
    mode: str
    max_lag: int


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Yields the cases of the arguments."""
    for trouble, ranks in itertools.product(args.troubles, args.ranks):
        for mode in dict.fromkeys(("exact", *args.modes)):
            exact = mode.startswith("exact")
            for max_lag in [MAX_LAG] if exact else args.max_lags:
                yield Case(trouble, ranks, mode, max_lag)


def measure(case: Case) -> dict[str, float]:
    """Returns the mean step in seconds, and the share of the data that was late.

    Raises:
      RuntimeError: a check failed, or the TCP bursts ended before the last step.
    """
    report = simulate(
        f"{PROGRAM} ranks={case.ranks} max_lag={case.max_lag} {MODES[case.mode]} "
        f"{TROUBLES[case.trouble]}"
    )
    if report["calls_s"] > BURSTS_END_S:
        raise RuntimeError(f"{case}: the bursts ended before the last step.")
    late = [call["late"] for call in report["calls"]]
    return {"step_s": report["calls_s"] / STEPS, "late": sum(late) / len(late)}


def read(path: Path) -> dict[Case, dict[str, Any]]:
    """Returns the lines of the file by case; none if it does not exist."""
    lines = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        lines[Case(*(line.pop(name) for name in Case._fields))] = line
    return lines


def print_table(lines: dict[Case, dict[str, Any]]) -> None:
    """Prints a line for each case, with its step relative to that of `exact`."""
    print("| trouble | ranks | mode | `max_lag` | ms a step | / `exact` | late |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for case, line in lines.items():
        exact = lines[case._replace(mode="exact", max_lag=MAX_LAG)]
        print(
            f"| {case.trouble} | {case.ranks} | `{case.mode}` | {case.max_lag} "
            f"| {1e3 * line['step_s']:.0f} | {line['step_s'] / exact['step_s']:.2f} "
            f"| {100 * line['late']:.1f} % |"
        )


def main() -> None:
    """Runs the cases without a line in the file, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--troubles", nargs="+", choices=TROUBLES, default=TROUBLES)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["bounded"])
    parser.add_argument("--max-lags", type=int, nargs="+", default=[MAX_LAG])
    args = parser.parse_args()
    lines = read(args.file)
    for case in cases(args):
        if case not in lines:
            lines[case] = measure(case)
            with args.file.open("a") as file:
                file.write(json.dumps(case._asdict() | lines[case]) + "\n")
    print_table(lines)


if __name__ == "__main__":
    main()
