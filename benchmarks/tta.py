"""Time to a target accuracy: the same trainings under every mode and every impairment.

    sudo python benchmarks/tta.py

The program makes 4 hosts on this machine (see `hosts.py`; needs root), each with a link
to one switch, and trains models on them (`accuracy_models.py`), a rank on each host:
with `lax.pmean` over Gloo as one array, and with this package. Settings are the
defaults, and each step reduces its loss, too. `--schemes` selects other methods, as
Gloo in bfloat16 or leaf by leaf, gradient coding, or an outer loop. With several rates,
as `--mbps 3 10 30`, a table and a picture (rates.png) show the time of a step over the
rate. `--tasks glosses` needs `--checkpoint`, the folder classified/checkpoint that
examples/finetune_encoder.py makes.

The program writes into `tta-output/` the figures of each run (results.jsonl, a line
each), tables (tables.md) and a picture of the accuracy over time (tta.png).
Runs in `results.jsonl` are not repeated, also those that have failed: the next start
continues an interrupted benchmark. `--at-most 20` makes the next 20 runs; `--tasks text
--impairments quiet pauses` selects a part of the matrix. A run of a small model takes
half a minute, of glosses six minutes.

`--report FILE` makes no run. It prints the tables of a file of results, and writes the
picture of README.md (first-screen.png); the results of those of docs/figures.md and
README.md are in published/.

No packet leaves the machine, and the hosts are removed at the end. Exit codes: 0, all
selected runs have results; 1 otherwise.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import results
import tta_report
from hosts import MISSING, RANKS, Link, environment, network, program
from tta_train import SCHEMES, Pauses

HERE = Path(__file__).parent
# The programs of the hosts import modules of this folder, and an example.
SIBLINGS = {"PYTHONPATH": f"{HERE}:{HERE.parent / 'examples'}"}

# glibc decides by the size of a block whether it returns the temporary memory of each
# step to the system; with these settings it keeps it (docs/figures.md, "Memory").
# The first value is the largest that mallopt(3) accepts, in bytes.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}

# Target accuracy of each training. Chosen: `exact` reaches it after a third to two
# thirds of the steps.
TARGETS = {
    ("fashion", "sgd"): 0.75,
    ("fashion", "adamw"): 0.75,
    ("text", "sgd"): 0.26,
    ("text", "adamw"): 0.34,
    ("glosses", "adamw"): 0.40,
}
TASKS, OPTIMIZERS = (list(dict.fromkeys(names)) for names in zip(*TARGETS, strict=True))
# The first optimizer of each task.
DEFAULT_OPTIMIZERS = dict(reversed(TARGETS))

# Longest time of a run, in seconds, in addition to LIMIT_FACTOR times its computation.
# Chosen: several times the time of the largest model.
LIMIT_S, LIMIT_FACTOR = 900.0, 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Impairment:
    """An impairment during a training.

    Attributes:
      title: the event, as in a table.
      link: fields of `Link` that differ from those of `quiet`.
      load: share of the links that TCP bursts take.
      burst_bytes: mean size of a burst.
      pauses: of the programs.
      slow: factor of the last rank's computation.
      killed: whether the last rank is killed.
    """

    title: str
    link: dict[str, Any] = dataclasses.field(default_factory=dict)
    load: float = 0.0
    # Chosen: 32 ms of a link of 250 Mbit/s.
    burst_bytes: int = 1_000_000
    pauses: Pauses | None = None
    slow: float = 1.0
    killed: bool = False


IMPAIRMENTS = {
    "quiet": Impairment(title="no impairment"),
    "pauses": Impairment(
        title="each rank by itself pauses 0.5 s before 5 % of its steps",
        pauses=Pauses(0.05, 500),
    ),
    "pauses-short": Impairment(
        title="each rank by itself pauses 60 ms before 10 % of its steps",
        pauses=Pauses(0.10, 60),
    ),
    "pauses-two": Impairment(
        title="two ranks at once pause 0.5 s before 5 % of the steps",
        pauses=Pauses(0.05, 500, ranks=2),
    ),
    # Chosen so that P99 / P50 of a call of Gloo with 384 KiB, 1.3 without bursts, has
    # the values of the paper's clusters.
    "tail1.5": Impairment(
        title="TCP bursts, beside which calls of Gloo have P99 / P50 = 1.5",
        load=0.04,
        burst_bytes=30_000,
    ),
    "tail3": Impairment(
        title="TCP bursts, beside which calls of Gloo have P99 / P50 = 3",
        load=0.1,
        burst_bytes=400_000,
    ),
    "bursts0.2": Impairment(title="TCP bursts take 20 % of the links", load=0.2),
    "bursts0.4": Impairment(title="TCP bursts take 40 % of the links", load=0.4),
    "bursts0.7": Impairment(title="TCP bursts take 70 % of the links", load=0.7),
    "loss1": Impairment(title="1 % of the packets are lost", link={"loss": 0.01}),
    "loss1-runs": Impairment(
        title="1 % of the packets are lost, in runs of 20",
        link={"loss": 0.01, "run": 20},
    ),
    "slow1.5": Impairment(title="one rank computes 1.5 times as long", slow=1.5),
    "slow3": Impairment(title="one rank computes 3 times as long", slow=3.0),
    "slow-link": Impairment(
        title="the link of one host has a third of the rate", link={"slow": 3.0}
    ),
    "killed": Impairment(
        title="one rank is killed after a third of the steps", killed=True
    ),
}
TITLES = {name: impairment.title for name, impairment in IMPAIRMENTS.items()}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training run.

    Attributes:
      task: of `accuracy_models`.
      optimizer: "sgd" (with momentum) or "adamw".
      scheme: of `tta_train.SCHEMES`.
      impairment: of `IMPAIRMENTS`.
      seed: of the parameters, the order of the examples, the pauses and the bursts.
      steps: of the optimizer.
      compute_ms: sleep of a rank in each step, in addition to the training.
      mbps: rate of a link in 10^6 bit/s.
      congestion: TCP's congestion control.
      ranks: hosts.
    """

    task: str
    optimizer: str
    scheme: str
    impairment: str
    seed: int
    steps: int
    compute_ms: float
    mbps: int
    congestion: str
    ranks: int

    def plan(self) -> dict[str, Any]:
        """Returns the plan of the ranks."""
        impairment = IMPAIRMENTS[self.impairment]
        pauses = dataclasses.asdict(impairment.pauses) if impairment.pauses else None
        return {
            **dataclasses.asdict(self),
            "pauses": pauses,
            "slow": impairment.slow,
            "killed_after": self.steps // 3 if impairment.killed else 0,
        }

    def link(self, queue_ms: int) -> Link:
        """Returns the link of each host."""
        quiet = Link(mbps=self.mbps, queue_ms=queue_ms, congestion=self.congestion)
        return dataclasses.replace(quiet, **IMPAIRMENTS[self.impairment].link)


def machine() -> dict[str, Any]:
    """Returns the facts about the machine that each run records."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    # ARM has no such line.
    models = [line.partition(": ")[2] for line in lines if line.startswith("model n")]
    return {
        "unix_s": round(time.time()),
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "machine": models[0] if models else platform.machine(),
        "versions": {
            name: importlib.metadata.version(name) for name in ("jax", "jax-optireduce")
        },
    }


def run(cell: Cell, queue_ms: int) -> dict[str, Any]:
    """Trains on new hosts; returns the figures of the run."""
    impairment, of_machine = IMPAIRMENTS[cell.impairment], machine()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        plan = folder / "cell.json"
        plan.write_text(json.dumps(cell.plan()))
        stack.enter_context(network(cell.link(queue_ms), cell.ranks))
        of_bursts = impairment.load, impairment.burst_bytes
        bursts = [str(n) for n in (cell.ranks, cell.seed, cell.mbps, *of_bursts)]
        for rank in range(cell.ranks) if impairment.load else ():
            arguments = (str(HERE / "bursts.py"), str(rank), *bursts)
            host = stack.enter_context(program(rank, *arguments, variables=SIBLINGS))
            host.stdout.readline()
        train = (str(HERE / "tta_train.py"), str(plan), name)
        variables = SIBLINGS | ALLOCATOR
        ranks = [
            stack.enter_context(
                program(
                    rank, *train, variables=variables | environment(rank, cell.ranks)
                )
            )
            for rank in range(cell.ranks)
        ]
        computed_s = cell.steps * cell.compute_ms / 1000
        end = time.monotonic() + LIMIT_S + LIMIT_FACTOR * computed_s
        for rank in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.communicate(timeout=max(end - time.monotonic(), 0.1))
        paths = [folder / f"{rank}.npz" for rank in range(cell.ranks)]
        found = figures(cell, [dict(np.load(p)) for p in paths if p.exists()])
        return of_machine | found


def figures(cell: Cell, ranks: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Returns the figures of a run from those of the completed ranks."""
    row: dict[str, Any] = {**dataclasses.asdict(cell), "ended": len(ranks)}
    if not ranks:
        return row
    target = TARGETS[cell.task, cell.optimizer]
    reached = [
        tta_report.reached(r["noted"], r["accuracies"], r["ends_s"], target)
        for r in ranks
    ]
    ends_s = np.stack([r["ends_s"] for r in ranks])
    half = cell.steps // 2
    made_s = [r["ends_s"][r["made"] - 1] for r in ranks]
    steps_s = np.concatenate([np.diff(ends, prepend=0) for ends in made_s])
    replicas = np.stack([r["parameters"].astype(np.float64) for r in ranks])
    mean = replicas.mean(axis=0)
    drift = np.linalg.norm(replicas - mean, axis=1).mean() / np.linalg.norm(mean)
    reports = np.concatenate([r["reports"] for r in ranks])
    later = np.concatenate([r["made"] for r in ranks]) > half
    late = reports.mean(axis=0)
    return row | {
        # The last rank to reach the target counts; None if a rank did not.
        "reached_s": None if None in reached else max(s for s, _ in reached),
        "reached_steps": None if None in reached else max(n for _, n in reached),
        "step_ms": 1000 * float(np.mean(ends_s[:, -1])) / cell.steps,
        # Without the compilation of outer steps, and with learned deadlines.
        "late_step_ms": 1000
        * float(np.mean(ends_s[:, -1] - ends_s[:, half - 1]))
        / (cell.steps - half),
        "step_ms_p50": 1000 * float(np.percentile(steps_s, 50)),
        "step_ms_p99": 1000 * float(np.percentile(steps_s, 99)),
        "missing_contributions": float(late[0]),
        "missing_results": float(late[1]),
        "deferred": float(late[2]),
        # Deadlines have been learned in the second half.
        "deadline_ms": 1000 * float(np.median(reports[later, 3])),
        "skipped": float(late[4]),
        "loss": float(np.mean([r["loss"] for r in ranks])),
        "step_bytes": float(np.mean([r["sent_bytes"] for r in ranks])) / cell.steps,
        "accuracy": float(np.mean([r["accuracies"][-1] for r in ranks])),
        "drift": float(drift),
        "curve_s": ranks[0]["ends_s"][ranks[0]["noted"] - 1].round(3).tolist(),
        "curve": np.mean([r["accuracies"] for r in ranks], axis=0).round(4).tolist(),
    }


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="\n".join(
            ("impairments:", *(f"  {name:<13} {t}" for name, t in TITLES.items()))
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def several(known: Sequence[str], default: Sequence[str]) -> dict[str, Any]:
        return {"nargs": "+", "choices": known, "default": default, "metavar": "NAME"}

    add = parser.add_argument
    add("--tasks", **several(TASKS, TASKS[:2]))
    add("--optimizers", **several(OPTIMIZERS, ()), help="default sgd; glosses: adamw")
    schemes = [tta_report.GLOO, *tta_report.MAIN]
    add("--schemes", **several(list(SCHEMES), schemes))
    add("--impairments", **several(list(IMPAIRMENTS), list(IMPAIRMENTS)))
    add("--seeds", type=int, default=3, help="of each run (default 3)")
    add("--steps", type=int, default=150, help="default 150")
    add("--compute-ms", type=float, default=30, help="sleep of a step (default 30)")
    # Chosen: the exchange is about a third of a quiet step.
    add("--mbps", type=int, nargs="+", default=[250], help="of a link (default 250)")
    add("--ranks", type=int, default=RANKS, help=f"hosts (default {RANKS})")
    add("--queue-ms", type=int, default=10, help="before each link (default 10)")
    add("--congestion", default="cubic", help="of TCP (default cubic)")
    add("--checkpoint", type=Path, help="folder of MiniLM, for the task glosses")
    add("--report", type=Path, metavar="FILE", help="print the ratios of results")
    add("--at-most", type=int, help="runs to make now (default all)")
    add("--output", type=Path, default=Path("tta-output"), help="default tta-output")
    args = parser.parse_args()
    if args.report is not None:
        return args
    if ("glosses" in args.tasks) != (args.checkpoint is not None):
        parser.error("the task glosses needs --checkpoint, and no other one has it")
    if MISSING or os.geteuid() != 0:
        parser.error(f"needs root, and {' and '.join(MISSING) or 'nothing else'}")
    return args


def cells(args: argparse.Namespace) -> list[Cell]:
    """Returns the selected runs: one seed of all, then the next."""
    every = itertools.product(
        *(
            range(args.seeds),
            args.mbps,
            args.impairments,
            TARGETS,
            args.schemes,
        )
    )
    return [
        Cell(
            *(task, optimizer, scheme, impairment, seed, args.steps, args.compute_ms),
            *(mbps, args.congestion, args.ranks),
        )
        for seed, mbps, impairment, (task, optimizer), scheme in every
        if task in args.tasks
        and optimizer in (args.optimizers or DEFAULT_OPTIMIZERS[task])
    ]


def main() -> int:
    """Makes the missing runs, writes table and picture; returns the exit code."""
    args = parse_arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    if args.report is not None:
        lines = args.report.read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        print(tta_report.tables(rows, TITLES))
        if results.having(rows, **tta_report.FIRST_TRAINING):
            print(tta_report.first_screen(rows, TITLES))
            picture = args.output / "first-screen.png"
            tta_report.draw_first_screen(rows, TITLES, TARGETS, picture)
        return 0
    if args.checkpoint is not None:
        SIBLINGS["MINILM"] = str(args.checkpoint.absolute())
    path = args.output / "results.jsonl"
    wanted = cells(args)
    done = results.read(path, wanted)
    pending = [cell for cell in wanted if cell not in done]
    print(f"{len(wanted)} runs, {len(done)} of them made", flush=True)
    for cell in pending[: args.at_most]:
        row = run(cell, args.queue_ms)
        results.append(path, row)
        print(tta_report.line(row), flush=True)
    rows = list(results.read(path, wanted).values())
    if rows:
        if len(args.mbps) > 1:
            tta_report.draw_rates(rows, args.output / "rates.png")
        tables = tta_report.tables(rows, TITLES)
        print(tables)
        (args.output / "tables.md").write_text(tables + "\n")
        tta_report.draw(rows, TARGETS, args.output / "tta.png")
    return 0 if len(rows) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
