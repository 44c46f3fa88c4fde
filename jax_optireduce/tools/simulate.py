"""`python -m jax_optireduce simulate`: runs the protocol in virtual time.

It runs the production protocol on a simulated network, and checks every result.
A run has a seed, or a written scenario; equal lines give equal runs:

    python -m jax_optireduce simulate --seed 1 --count 100
    python -m jax_optireduce simulate --scenario "ranks=4 loss_ppm=30000"
    python -m jax_optireduce simulate --scenario "seed=7 size=small mode=lossy"

The third command takes the scenario of seed 7 and changes one field. A failure
prints the command of its replay.

Exit codes: 0, all checks passed; 1, a run failed; 2, usage error or invalid
scenario.
"""

import argparse
import collections
import json
import textwrap
from collections.abc import Iterator, Mapping

from jax_optireduce import _native
from jax_optireduce._errors import UsageError
from jax_optireduce.tools import arguments, screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this verb to `parser`."""
    parser.epilog = f"fields of a scenario, and their defaults:\n{_fields()}"
    parser.add_argument("--seed", **arguments.whole(0), help="first seed (default 1)")
    parser.add_argument(
        "--count", **arguments.whole(1), help="number of seeds (default 1)"
    )
    parser.add_argument(
        "--size",
        **arguments.one_of("small", "medium"),
        help="small: to 8 ranks and 8 KiB; medium: to 16 ranks and 256 KiB (default "
        "small)",
    )
    parser.add_argument(
        "--scenario",
        metavar="LINE",
        help='"key=value ..." instead of seeds; size=small fills in the rest',
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the counters, and the time of every call, for programs",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the scenarios and prints the counters.

    Returns:
      0 if all checks passed, 1 after the first failed run.

    Raises:
      UsageError: the scenario is invalid.
    """
    counters: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()
    failed: Mapping[str, object] | None = None
    calls: list[Mapping[str, float]] = []
    runs = 0
    virtual_s = calls_s = 0.0
    for line in _lines(args):
        try:
            report = _native.simulate(line)
        except ValueError as error:
            raise UsageError(str(error)) from error
        runs += 1
        virtual_s += report["virtual_s"]
        calls_s += report["calls_s"]
        calls += report["calls"]
        counters.update(report["counters"])
        faults.update(report["faults"])
        if not report["ok"]:
            failed = report
            break
    if args.json:
        summary = {"ok": failed is None, "runs": runs, "virtual_s": virtual_s}
        failure = (
            {key: failed[key] for key in ("failure", "scenario")} if failed else {}
        )
        times = {"calls_s": calls_s, "calls": calls}
        counted = {"counters": counters, "faults": faults}
        print(json.dumps(summary | failure | counted | times))
        return 0 if failed is None else 1
    _print_table("endpoint", counters)
    _print_table("network", faults)
    print(f"{runs} runs, {virtual_s:.3f} s of virtual time")
    if failed is None:
        return 0
    print(f"FAILED {failed['failure']}")
    print(
        f'replay: python -m jax_optireduce simulate --scenario "{failed["scenario"]}"'
    )
    return 1


def _fields() -> str:
    """Returns the fields of a scenario, within the columns of the screen."""
    return "\n".join(
        textwrap.fill(line, screen.WIDTH, subsequent_indent=" " * 6)
        for line in _native.scenario_fields().splitlines()
    )


def _lines(args: argparse.Namespace) -> Iterator[str]:
    """Yields the scenarios to run."""
    seeds = {"--seed": args.seed, "--count": args.count, "--size": args.size}
    if args.scenario is not None:
        for option, value in seeds.items():
            if value is not None:
                raise UsageError(
                    f"{option} {value} and --scenario exclude each other; write "
                    f"{option[2:]}={value} into the scenario, or leave it out."
                )
        yield args.scenario
        return
    first = 1 if args.seed is None else args.seed
    for seed in range(first, first + (args.count or 1)):
        yield f"seed={seed} size={args.size or 'small'}"


def _print_table(title: str, counts: Mapping[str, int]) -> None:
    """Prints the nonzero counters."""
    table = screen.table(f"counter of the {title}", "sum over the runs", left=1)
    for name, count in counts.items():
        if count:
            table.add_row(name, f"{count:,}")
    screen.show(table)
    print()
