"""The cost of lateness and loss in accuracy: the same trainings under every mode.

    python benchmarks/accuracy.py

The program trains two small models with SGD and AdamW on 4 ranks of this host, with
each scheme (modes, the steps of ACCO, and a share of each gradient that is one step
late), with lost datagrams, with several seeds. It writes into `accuracy-output/` the
figures of each run (results.jsonl, a line each) and tables (tables.md).

Cells in `results.jsonl` are not run again: the next start continues an interrupted run,
and a copy of `published/accuracy.jsonl` gives the tables of docs/figures.md.
`--at-most 20` runs the next 20 cells; `--tasks text --optimizers adamw` selects a part
of the matrix. All cells take half an hour on two cores.

Exit codes: 0, all selected cells have results; 1 otherwise.
"""

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import accuracy_report
import results
from accuracy_train import SCHEMES, Cell

PROGRAM = Path(__file__).with_name("accuracy_train.py")

# The schemes of docs/figures.md.
LATE = ["10 % late", "25 % late", "50 % late"]
PUBLISHED = ["exact", "lossy", "bounded", "exact, ACCO", *LATE]


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def several(known: list[str]) -> dict:
        return {"nargs": "+", "choices": known, "metavar": "NAME"}

    add = parser.add_argument
    add("--tasks", **several(["fashion", "text"]), default=["fashion", "text"])
    add("--optimizers", **several(["sgd", "adamw"]), default=["sgd", "adamw"])
    add("--schemes", **several(list(SCHEMES)), default=PUBLISHED)
    add(
        "--lost-percent",
        type=int,
        nargs="+",
        default=[0, 5, 15],
        metavar="PERCENT",
        help="share of the datagrams that are lost (default 0 5 15)",
    )
    add("--seeds", type=int, default=3, help="seeds of each cell (default 3)")
    add("--steps", type=int, default=150, help="default 150")
    add("--processes", type=int, default=4, help="ranks (default 4)")
    add("--at-most", type=int, help="cells to run now (default all)")
    add(
        "--output",
        type=Path,
        default=Path("accuracy-output"),
        help="folder for the results (default accuracy-output)",
    )
    return parser.parse_args()


def cells(args: argparse.Namespace) -> list[Cell]:
    """Returns the selected cells; cells with the same programs are adjacent.

    Accuracies in mode `exact` are independent of the network: with loss only the time
    of a step is measured, with one seed of `exact` itself.
    """
    found = []
    for task, optimizer, scheme, lost, seed in itertools.product(
        args.tasks, args.optimizers, args.schemes, args.lost_percent, range(args.seeds)
    ):
        measured = (scheme, seed) == ("exact", 0)
        if SCHEMES[scheme].mode == "exact" and lost and not measured:
            continue
        found.append(
            Cell(
                task=task,
                optimizer=optimizer,
                scheme=scheme,
                lost_percent=lost,
                seed=seed,
                steps=args.steps,
            )
        )
    return found


def run(pending: list[Cell], processes: int, path: Path) -> int:
    """Trains the cells in one set of processes; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "cells.json"
        plan.write_text(json.dumps([dataclasses.asdict(cell) for cell in pending]))
        # -P: the installed package, not the folder of that name in a checkout.
        launch = [sys.executable, "-P", "-m", "jax_optireduce", "launch"]
        ended = subprocess.run(  # noqa: S603 (the project's own launcher)
            [*launch, "-n", str(processes), str(PROGRAM), str(plan), str(path)],
            check=False,
        )
    return ended.returncode


def main() -> int:
    """Runs the missing trainings, writes the tables; returns the exit code."""
    args = parse_arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "results.jsonl"
    wanted = cells(args)
    pending = [cell for cell in wanted if cell not in results.read(path, wanted)]
    print(f"{len(wanted)} cells, {len(wanted) - len(pending)} of them done", flush=True)
    if pending:
        run(pending[: args.at_most], args.processes, path)
    done = results.read(path, wanted)
    if done:
        tables = accuracy_report.tables(list(done.values()))
        print(tables)
        (args.output / "tables.md").write_text(tables + "\n")
    return 0 if len(done) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
