"""The cost of lateness and loss in accuracy: the same trainings under every mode.

    python benchmarks/accuracy.py

The program trains two small models with SGD and AdamW on 4 ranks of this host, with
each scheme (`exact`, `lossy`, `bounded`; `--schemes` also takes `agreed`, the steps of
ACCO, and a share of each gradient that is one step late), with lost datagrams or one
slow rank, with several seeds. It writes into `accuracy-output/` the figures of each run
(results.jsonl, a line each) and tables (tables.md).

Cells in `results.jsonl` are not run again: the next start continues an interrupted run.
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
    add("--schemes", **several(list(SCHEMES)), default=["exact", "lossy", "bounded"])
    add(
        "--conditions",
        nargs="+",
        default=["0", "5", "15", "30", "straggler"],
        metavar="PERCENT",
        help="datagrams lost, or straggler (default 0 5 15 30 straggler)",
    )
    add("--seeds", type=int, default=3, help="seeds of each cell (default 3)")
    add("--steps", type=int, default=150, help="default 150")
    add("--processes", type=int, default=4, help="ranks (default 4)")
    add(
        "--deadline-ms",
        type=float,
        default=0,
        help="deadline of `lossy` and `bounded` calls (default 0: learned)",
    )
    add(
        "--straggler-ms",
        type=float,
        default=30,
        help="sleep of the slow rank in each step (default 30)",
    )
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

    The accuracy of `exact` is independent of the network, so cells with loss or a slow
    rank have one seed, for the time of a step.
    """
    found = []
    for task, optimizer, scheme, condition, seed in itertools.product(
        args.tasks, args.optimizers, args.schemes, args.conditions, range(args.seeds)
    ):
        if SCHEMES[scheme].mode == "exact" and condition != "0" and seed > 0:
            continue
        found.append(
            Cell(
                task=task,
                optimizer=optimizer,
                scheme=scheme,
                condition=condition,
                seed=seed,
                steps=args.steps,
                deadline_ms=args.deadline_ms,
                straggler_ms=args.straggler_ms,
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
        tables = accuracy_report.tables(list(done.values()), args.processes)
        print(tables)
        (args.output / "tables.md").write_text(tables + "\n")
    return 0 if len(done) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
