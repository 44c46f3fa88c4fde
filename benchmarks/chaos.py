"""Training on machines that come and go: steps, participation and accuracy.

    python benchmarks/chaos.py

The program trains on digits with 8 ranks on this machine: without faults and, side by
side with that, with faults, after which ranks come back; the same for replicas with an
outer loop of 10 steps; then with the faults over Gloo, where one ends the job. A job of
which half of the ranks or more are lost, or any over Gloo, starts again from its last
checkpoint; replicas begin anew with their newest state. Faults come at random times, as
often as --faults-per-hour says: SIGKILL of one rank (60 %) or of two (10 %), rank 0
among them, SIGTERM (10 %), and SIGSTOP for 3 to 8 s (20 %, not over Gloo, which would
only wait). A killed rank is started again after 2 s.

The computation of a step is a sleep, so that a machine has time for all ranks. The
figures of each run are in `chaos-output/results.jsonl`; none there is repeated. The
table is printed, and written to `chaos-output/table.md`, and a picture beside it.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import results
from matplotlib.figure import Figure

from jax_optireduce.tools import launch

HERE = Path(__file__).parent

# Time from the end of a process to the start of the next one, in seconds.
AWAY_S = 2.0

# Longest duration of a run, as a multiple of its computation. Chosen: a job that is
# slower has lost; its figures are those until then.
LIMIT_FACTOR = 1.6

# Longest time until the first step, in seconds. Chosen: a busy machine.
START_S = 600

# Points of a curve. Chosen: more than a picture shows.
POINTS = 200

OPTIONS = {"peer_timeout_s": "5", "lanes": "1"}

# Largest deadline of a scheme, in seconds. Chosen: several times a call; for replicas,
# which come to their first calls at different times, also that difference.
DEADLINE_MAX_S = {"bounded": 0.5, "outer": 5.0, "gloo": 0.5}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A training.

    Attributes:
      scheme: "bounded", "outer" or "gloo".
      faults_per_hour: mean rate of the faults.
      ranks, steps: of the training.
      step_s: computation of a step, in seconds.
      seed: of the faults.
    """

    scheme: str
    faults_per_hour: float
    ranks: int
    steps: int
    step_s: float
    seed: int


class Job:
    """The processes of a run."""

    def __init__(self, run: Run, folder: Path) -> None:
        """Starts nothing yet."""
        self.run, self.folder = run, folder
        self.environment: dict[str, str] = {}
        self.coordinator: subprocess.Popen[bytes] | None = None
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.due_s: dict[int, float] = {}  # the time of the next start or wake
        self.faults: collections.Counter[str] = collections.Counter()
        self.begin()

    def begin(self) -> None:
        """Starts the whole job, again if it has run."""
        self.stop()
        with launch.reserved_ports() as port, launch.reserved_ports(2) as first:
            ports = (port, first)
        self.environment = {
            **os.environ,
            **{f"JAX_OPTIREDUCE_{k.upper()}": v for k, v in OPTIONS.items()},
            "JAX_OPTIREDUCE_DEADLINE_MAX_S": str(DEADLINE_MAX_S[self.run.scheme]),
            "JAX_PLATFORMS": "cpu",
            "CHAOS_RANKS": str(self.run.ranks),
            "PYTHONPATH": str(HERE),
        }
        command = ["coordinator", "--ranks", str(self.run.ranks)]
        if self.run.scheme == "outer":
            command = ["coordinator", "--replicas"]
            self.environment["JAX_OPTIREDUCE_REPLICAS_MIN"] = str(self.run.ranks)
        else:
            self.environment |= {
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{ports[0]}",
                "JAX_NUM_PROCESSES": str(self.run.ranks),
            }
        if self.run.scheme != "gloo":
            address = f"127.0.0.1:{ports[1]}"
            self.environment["JAX_OPTIREDUCE_COORDINATOR"] = address
            self.coordinator = self._start(
                "coordinator",
                "-m",
                "jax_optireduce",
                *command,
                "--port",
                str(ports[1]),
            )
        for rank in range(self.run.ranks):
            self.start(rank)

    def start(self, rank: int) -> None:
        """Starts a process for a rank."""
        arguments = map(str, (self.run.steps, self.run.step_s, self.folder))
        self.ranks[rank] = self._start(
            f"rank{rank}",
            str(HERE / "chaos_rank.py"),
            self.run.scheme,
            *arguments,
            **{"CHAOS_RANK": str(rank), self._own(): str(rank)},
        )

    def _own(self) -> str:
        """Returns the variable with the name of a replica, or the number of a rank."""
        outer = self.run.scheme == "outer"
        return "JAX_OPTIREDUCE_REPLICA" if outer else "JAX_PROCESS_ID"

    def _start(self, name: str, *command: str, **more: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 (its own command)
                [sys.executable, *command],
                env=self.environment | more,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        """Kills all processes."""
        processes = [*self.ranks.values(), *filter(None, [self.coordinator])]
        for process in processes:
            process.kill()
            process.wait()
        self.ranks, self.coordinator = {}, None

    def fault(self, chance: random.Random, now: float) -> None:
        """Lets one fault happen."""
        kinds = ("kill", "kill two", "terminate", "stop")
        (kind,) = chance.choices(kinds, (6, 1, 1, 2))
        if self.run.scheme == "gloo" and kind == "stop":
            return
        running = [r for r, process in self.ranks.items() if process.poll() is None]
        victims = chance.sample(running, min(len(running), 1 + (kind == "kill two")))
        self.faults[kind] += 1
        for rank in victims:
            process = self.ranks[rank]
            if kind == "stop":
                process.send_signal(signal.SIGSTOP)
                self.due_s[rank] = now + chance.uniform(3, 8)
            else:
                process.send_signal(
                    signal.SIGTERM if kind == "terminate" else signal.SIGKILL
                )
        if self.run.scheme == "gloo":
            time.sleep(AWAY_S)
            self.begin()

    def tend(self, now: float) -> None:
        """Wakes stopped ranks, and starts ended ones again."""
        for rank, process in list(self.ranks.items()):
            ended = process.poll() in (None, 0) or any(self.folder.glob("end*"))
            if not ended and rank not in self.due_s:
                self.due_s[rank] = now + AWAY_S
            if self.due_s.get(rank, now) >= now:
                continue
            del self.due_s[rank]
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
            else:
                self.start(rank)

    def over(self) -> bool:
        """Whether the training has ended on a rank, and no process runs."""
        running = any(process.poll() is None for process in self.ranks.values())
        return not running and any(self.folder.glob("end*"))


def measure(run: Run, folder: Path) -> dict[str, Any]:
    """Makes a run; returns its figures."""
    chance = random.Random(run.seed)  # noqa: S311 (it has a seed)
    job = Job(run, folder)
    rate = run.faults_per_hour / 3600
    end_s = time.monotonic() + START_S
    next_s = None
    try:
        while not job.over() and (now := time.monotonic()) < end_s:
            # Faults begin with the training, and end before its last steps.
            newest = _newest_step(folder)
            if next_s is None and newest:
                end_s = now + LIMIT_FACTOR * run.steps * run.step_s
                next_s = now + (chance.expovariate(rate) if rate else float("inf"))
            if next_s is not None and now >= next_s and newest < 0.95 * run.steps:
                # From now on: after a pause of this machine none is overdue.
                next_s = now + chance.expovariate(rate)
                job.fault(chance, now)
            job.tend(now)
            time.sleep(0.1)
    finally:
        job.stop()
    return _figures(run, folder) | {"faults": dict(job.faults)}


def _newest_step(folder: Path) -> int:
    return max((row["step"] for row in _rows(folder, last_bytes=1000)), default=0)


def _rows(folder: Path, last_bytes: int | None = None) -> list[dict[str, Any]]:
    """Returns the whole lines of all ranks: a process may die while it writes one."""
    rows = []
    for path in folder.glob("rank*.jsonl"):
        for line in path.read_text()[-(last_bytes or 0) :].splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                row = json.loads(line)
                if isinstance(row, dict):
                    rows.append(row)
    return rows


def _figures(run: Run, folder: Path) -> dict[str, Any]:
    rows = sorted(_rows(folder), key=lambda row: row["s"])
    if not rows:
        raise SystemExit(f"no step was made: see {folder}")
    begun_s = rows[0]["s"]
    # The sums of each step, over the ranks that have made it.
    live = np.array([row["live"] for row in rows])
    taken = live * (1 - np.array([row["missing"] for row in rows]))
    ends = [json.loads(path.read_text()) for path in folder.glob("end*")]
    last = [row["loss"] for row in rows if row["step"] > 0.9 * run.steps]
    waits = [
        float(wait)
        for path in folder.glob("rank*.log")
        for wait in re.findall(r"this process waited ([\d.]+) s", path.read_text())
    ]
    return {
        "steps_made": max(row["step"] for row in rows),
        "seconds": rows[-1]["s"] - begun_s,
        "of_live": float(np.mean(taken / live)),
        "of_places": float(np.mean(taken) / run.ranks),
        "loss": float(np.mean(last)) if last else None,
        "accuracy": float(np.mean([end["accuracy"] for end in ends])) if ends else None,
        "waits": sorted(waits),
        "ends": ends,
        "curve": _curve(rows, taken / run.ranks),
    }


def _curve(rows: list[dict[str, Any]], taken: np.ndarray) -> list[list[float]]:
    """Returns time, step, share of all ranks in a sum, and loss."""
    times = np.array([row["s"] for row in rows])
    steps = np.maximum.accumulate([row["step"] for row in rows])
    losses = np.array([row["loss"] for row in rows])
    parts = np.array_split(np.arange(len(rows)), min(POINTS, len(rows)))
    return [
        [
            round(float(value), 4)
            for value in (
                times[part[-1]] - times[0],
                steps[part[-1]],
                np.mean(taken[part]),
                np.mean(losses[part]),
            )
        ]
        for part in parts
    ]


def table(figures: dict[Run, dict[str, Any]]) -> str:
    """Returns the table of all runs."""
    lines = [
        (
            "| training | faults | steps | speed | live in a sum | of all | a return "
            "| loss | accuracy |"
        ),
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    pace = {
        (run.seed, run.scheme): found["steps_made"] / found["seconds"]
        for run, found in figures.items()
        if not run.faults_per_hour
    }
    for run, found in figures.items():
        faults = ", ".join(f"{count} {kind}" for kind, count in found["faults"].items())
        # Gloo has no run without faults.
        of = "bounded" if run.scheme == "gloo" else run.scheme
        speed = (
            found["steps_made"] / found["seconds"] / pace.get((run.seed, of), np.nan)
        )
        waits = found["waits"]
        lines.append(
            f"| {run.scheme} | {faults or 'none'} | {found['steps_made']} "
            f"| {speed:.2f} | {found['of_live']:.2f} | {found['of_places']:.2f} "
            f"| {f'{np.median(waits):.2f} s' if waits else '-'} "
            f"| {_or_dash(found['loss'], '.4f')} "
            f"| {_or_dash(found['accuracy'], '.1%')} |"
        )
    return "\n".join(lines) + "\n"


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def plot(figures: dict[Run, dict[str, Any]], path: Path) -> None:
    """Draws steps, participation and loss of all runs over time."""
    figure = Figure(figsize=(7, 7), layout="constrained")
    axes = figure.subplots(3, sharex=True)
    for run, found in figures.items():
        name = f"{run.scheme}, {run.faults_per_hour:g} faults an hour"
        times, *curves = zip(*found["curve"], strict=True)
        for axis, curve in zip(axes, curves, strict=True):
            axis.plot(times, curve, label=name, linewidth=1)
    for axis, name in zip(axes, ("step", "ranks in a sum", "loss"), strict=True):
        axis.set_ylabel(name)
    axes[1].set_ylim(0, 1.05)
    axes[2].set_yscale("log")
    axes[2].yaxis.set_major_formatter("{x:g}")
    axes[2].yaxis.set_minor_formatter("")
    axes[2].set_xlabel("s")
    axes[0].legend()
    figure.savefig(path, dpi=100)


def main() -> None:
    """Makes the runs that are missing, and prints the table."""
    parser = argparse.ArgumentParser(description="Trains while processes die.")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=9_000)
    parser.add_argument("--step-s", type=float, default=0.2)
    parser.add_argument("--faults-per-hour", type=float, default=125)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--schemes", nargs="+", default=list(DEADLINE_MAX_S))
    parser.add_argument("--output", type=Path, default=Path("chaos-output"))
    given = parser.parse_args()
    given.output.mkdir(exist_ok=True)
    path = given.output / "results.jsonl"
    runs = [
        Run(
            scheme=scheme,
            faults_per_hour=rate,
            ranks=given.ranks,
            steps=given.steps,
            step_s=given.step_s,
            seed=seed,
        )
        for seed in given.seeds
        for scheme in given.schemes
        for rate in (0.0, given.faults_per_hour)
        if rate or scheme != "gloo"
    ]
    missing = [run for run in runs if not results.read(path, [run])]
    for _, group in itertools.groupby(missing, lambda run: (run.seed, run.scheme)):
        with ThreadPoolExecutor() as pool:
            for run, figures in pool.map(_measured, group):
                results.append(path, dataclasses.asdict(run) | figures)
    figures = results.read(path, runs)
    text = table(figures)
    (given.output / "table.md").write_text(text)
    plot(figures, given.output / "chaos.png")
    print(text)


def _measured(run: Run) -> tuple[Run, dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"{run.scheme}, {run.faults_per_hour:g} faults per hour: {folder}")
    return run, measure(run, folder)


if __name__ == "__main__":
    main()
