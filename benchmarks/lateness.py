"""The cost of a fault of one rank for the others: the times of their calls.

    python benchmarks/lateness.py

The program starts 4 ranks on this host for each fault and each kind of deadline, fixed
and learned. They make calls in mode "bounded" without a fault (`none`), or one rank
sleeps 200 ms before each call (`slow`), is stopped for 10 s and continues (`stopped`),
is killed (`killed`), or 5 % of all datagrams are lost (`loss`). It prints, over the
healthy ranks:

  * the time of a call, in seconds and in units of T, its deadline, and the time of the
    transport alone, without JAX;
  * shares of late contributions and results, and of results with data of earlier calls;
  * the rank that the log named as slow, the number of ranks that logged it, and the
    share of the calls in which it was `stats.slowest_process`;
  * after a drain, the largest difference between the sum of all results and the
    contributions: nonzero if data was lost or added twice.

The calls of `stopped` have separate rows for the stop and the time afterwards, and
`slow itself` has the calls of the sleeping rank. `killed` has the calls until the
removal of the rank, `without it` the later calls. As a reference for the machine, a
process that only sleeps measures its late wake-ups.

Exit codes: 0, all ranks except the killed one ended without an error, and no data was
lost; 1 otherwise.
"""

import argparse
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

PROGRAM = Path(__file__).with_name("lateness_rank.py")

# A power of two, so that means of whole numbers are exact.
RANKS = 4
VICTIM = RANKS - 1

FAULTS = ("none", "slow", "stopped", "killed", "loss")

# Chosen: a delay of several steps, a stop of many calls, and heavy loss.
SLEEP_S = 0.2
STOPPED_S = 3.0
LOSS = 0.05

# A fixed deadline T, in seconds, by the bucket's MiB: ten times a healthy call of four
# ranks on two cores (9 ms and 150 ms).
DEADLINES_S = {1: 0.1, 25: 1.5}

# Call before which the last rank is stopped or killed.
# Chosen: a learned deadline is learned by then, from 20 calls.
FAULT_AT = 50
# Calls before this one do not count, for the same reason.
WARM_UP = 30

# Silence after which the killed rank is removed, in seconds.
# Chosen: a hundred calls, and shorter than the default of 30 s.
PEER_TIMEOUT_S = 3.0

# Longest time of the processes of one cell, in seconds.
# Chosen: 300 calls of the sleeping rank take 75 s on an idle machine.
LIMIT_S = 400.0

# Sleep of the reference process, in seconds.
YARDSTICK_S = 0.01


@dataclasses.dataclass(frozen=True)
class Cell:
    """One set of processes.

    Attributes:
      fault: of `FAULTS`.
      deadline_s: T; 0: learned.
      mebibytes: size of the bucket.
      calls: of the session.
    """

    fault: str
    deadline_s: float
    mebibytes: int
    calls: int

    @property
    def title(self) -> str:
        """Names it."""
        deadline = f"T = {self.deadline_s:g} s" if self.deadline_s else "T learned"
        return f"{self.fault}, {self.mebibytes} MiB, {deadline}"

    def plan(self) -> dict[str, Any]:
        """Returns the plan of each rank."""
        options: dict[str, Any] = {"deadline_s": self.deadline_s}
        if self.fault == "loss":
            options["faults"] = {"loss": LOSS, "seed": 1}
        if self.fault == "killed":
            options["peer_timeout_s"] = PEER_TIMEOUT_S
        return {
            "mode": "bounded",
            "bytes": self.mebibytes << 20,
            "calls": self.calls,
            "sleep_s": SLEEP_S if self.fault == "slow" else 0.0,
            "options": options,
        }


@dataclasses.dataclass
class Run:
    """The outcome of a cell.

    Attributes:
      moments: `time.monotonic()` of the signals to the last rank, by name.
      ranks: output of each rank; None if the rank ended without output.
      woke_late_s: lateness of each wake-up of the reference process, in seconds.
    """

    moments: dict[str, float]
    ranks: list[dict[str, Any] | None]
    woke_late_s: list[float]


class Fault:
    """Applies the fault of a cell to the last rank, in time."""

    def __init__(self, fault: str) -> None:
        """Prepares the fault, which begins at call `FAULT_AT` of the rank."""
        self.moments: dict[str, float] = {}
        self._fault = fault
        self._pid = 0

    def read(self, line: str) -> None:
        """Handles a line of the launcher's output."""
        match = re.match(rf"\[{VICTIM}\] (pid|call) (\d+)", line)
        if match and match[1] == "pid":
            self._pid = int(match[2])
        elif match and int(match[2]) == FAULT_AT:
            if self._fault == "stopped":
                self._send(signal.SIGSTOP)
            if self._fault == "killed":
                self._send(signal.SIGKILL)

    def go_on(self) -> None:
        """Ends the stop after `STOPPED_S`."""
        stopped = self.moments.get("SIGSTOP")
        if stopped is None or "SIGCONT" in self.moments:
            return
        if time.monotonic() - stopped >= STOPPED_S:
            self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)
        self.moments[number.name] = time.monotonic()


def run(cell: Cell) -> Run:
    """Runs the processes of a cell to their end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps(cell.plan()))
        # -P: the installed package, not the folder of that name in a checkout. The
        # grace time is for the ranks that continue without the killed one.
        launch = [sys.executable, "-P", "-m", "jax_optireduce", "launch"]
        launch += ["-n", str(RANKS), "--grace-s", str(LIMIT_S), str(PROGRAM)]
        with subprocess.Popen(  # noqa: S603 (the project's own launcher)
            [*launch, str(folder / "plan.json"), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            fault, woke_late_s, output = watch(process, Fault(cell.fault))
        paths = [folder / f"rank{rank}.json" for rank in range(RANKS)]
        ranks = [json.loads(p.read_text()) if p.exists() else None for p in paths]
    ended_early = [r for r in range(RANKS) if ranks[r] is None]
    if ended_early != ([VICTIM] if cell.fault == "killed" else []):
        print("\n".join(output[-40:]), file=sys.stderr)
    return Run(fault.moments, ranks, woke_late_s)


def watch(
    process: subprocess.Popen[bytes], fault: Fault
) -> tuple[Fault, list[float], list[str]]:
    """Reads the output and applies the fault until the end of the process.

    Returns:
      The fault, the lateness of each wake-up in seconds, and the lines of the output.
    """
    woke_late_s, lines, rest = [], [], b""
    end = time.monotonic() + LIMIT_S
    os.set_blocking(process.stdout.fileno(), False)
    while process.poll() is None:
        before = time.monotonic()
        if before > end:
            process.terminate()
        time.sleep(YARDSTICK_S)
        woke_late_s.append(time.monotonic() - before - YARDSTICK_S)
        *whole, rest = (rest + (process.stdout.read() or b"")).split(b"\n")
        for line in whole:
            lines.append(line.decode(errors="replace"))
            fault.read(lines[-1])
        fault.go_on()
    return fault, woke_late_s, lines


def rows(cell: Cell, run: Run) -> dict[str, dict[str, Any]]:
    """Returns the rows of a cell, by title, without rows of no calls."""
    moments, always = run.moments, float("inf")
    healthy, itself = run.ranks[:VICTIM], run.ranks[VICTIM:]
    if cell.fault == "stopped":
        stop, go_on = moments["SIGSTOP"], moments["SIGCONT"]
        found = {
            "stopped": figures(healthy, stop, go_on),
            "afterwards": figures(healthy, go_on, always),
        }
    elif cell.fault == "killed":
        killed, removed = moments["SIGKILL"], removed_at(run)
        found = {
            "killed": figures(healthy, killed, removed),
            "without it": figures(healthy, removed, always),
        }
    else:
        since = max(rank["began"][WARM_UP] for rank in run.ranks[:VICTIM] if rank)
        found = {cell.fault: figures(healthy, since, always)}
    if cell.fault == "slow":
        found["slow itself"] = figures(itself, since, always)
    return {title: row for title, row in found.items() if row}


def figures(
    ranks: list[dict[str, Any] | None], since: float, until: float
) -> dict[str, Any] | None:
    """Returns the figures of the calls that these ranks began in an interval."""
    ended = [rank for rank in ranks if rank]
    began = np.concatenate([rank["began"] for rank in ended])
    seconds = np.concatenate([rank["seconds"] for rank in ended])
    reports = np.concatenate([rank["reports"] for rank in ended])
    counted = (began >= since) & (began < until)
    if not counted.any():
        return None
    seconds = seconds[counted]
    elapsed, deadline, contributions, results, deferred, slowest, _ = reports[counted].T
    # Calls that all others have passed have no deadline: they get the median.
    known = reports[:, 1][reports[:, 1] > 0]
    deadline = np.where(deadline > 0, deadline, np.median(known))

    def quantiles(values: np.ndarray) -> list[float]:
        return [*np.percentile(values, [50, 99]), values.max()]

    return {
        "calls": len(seconds),
        "seconds": quantiles(seconds),
        "deadline_s": float(np.median(deadline)),
        "of_deadline": quantiles(seconds / deadline),
        "transport_of_deadline": quantiles(elapsed / deadline),
        "missing_contributions": contributions.mean(),
        "missing_results": results.mean(),
        "deferred": deferred.mean(),
        "slowest": float((slowest == VICTIM).mean()),
    }


def summary(cell: Cell, run: Run) -> dict[str, Any]:
    """Returns the figures of a cell, without those of single calls."""
    ended = [rank for rank in run.ranks if rank]
    named: dict[str, list[int]] = {}
    for number, rank in enumerate(run.ranks[:VICTIM]):
        for line in rank["log"] if rank else []:
            match = re.match(r"rank (\d+) is slow", line)
            if match and number not in named.setdefault(match[1], []):
                named[match[1]].append(number)
    # The contributions of the killed rank are unknown.
    conserved = None
    if cell.fault != "killed" and all(rank["received"] for rank in ended):
        given = sum(rank["given"] for rank in ended)
        conserved = max(abs(x - given) for rank in ended for x in rank["received"])
    aborted = RANKS - len(ended) - (cell.fault == "killed")
    report = {
        **dataclasses.asdict(cell),
        "rows": rows(cell, run),
        "named": named,
        "conservation_error": conserved,
        "aborted": aborted,
        "errors": sorted({rank["error"] for rank in ended if rank["error"]}),
        "cpu_s": [rank["cpu_s"] for rank in ended],
        "woke_late_p99_s": float(np.percentile(run.woke_late_s, 99)),
        "load": os.getloadavg()[0],
    }
    if cell.fault == "killed":
        report["removed_after_s"] = removed_at(run) - run.moments["SIGKILL"]
    return report


def removed_at(run: Run) -> float:
    """Returns the begin of the first call without the last rank."""
    began = [
        at
        for rank in run.ranks[:VICTIM]
        for at, report in zip(*(rank[key] for key in ("began", "reports")), strict=True)
        if report[-1] < RANKS
    ]
    return min(began, default=float("inf"))


def show(reports: list[dict[str, Any]]) -> str:
    """Returns the table."""
    columns = [
        *("fault", "T", "calls", "P50", "P99", "max, s", "P50 / T", "P99 / T"),
        *("max / T", "transport P99 / T", "late", "missing", "deferred"),
        *("named slow", "slowest", "lost", "P99 of a sleep"),
    ]
    lines = [f"| {' | '.join(columns)} |", f"| --- |{' ---: |' * (len(columns) - 1)}"]
    for report in reports:
        named = "; ".join(
            f"{rank} by {len(by)} of {VICTIM}" for rank, by in report["named"].items()
        )
        error = report["conservation_error"]
        for name, row in report["rows"].items():
            cells = [
                f"{name}, {report['mebibytes']} MiB",
                f"{row['deadline_s']:.3f}"
                + ("" if report["deadline_s"] else " learned"),
                f"{row['calls']}",
                *(f"{value:.3f}" for value in row["seconds"]),
                *(f"{value:.2f}" for value in row["of_deadline"]),
                f"{row['transport_of_deadline'][1]:.2f}",
                f"{100 * row['missing_contributions']:.1f} %",
                f"{100 * row['missing_results']:.1f} %",
                f"{100 * row['deferred']:.1f} %",
                named or "none",
                f"{100 * row['slowest']:.0f} %",
                "-" if error is None else f"{error:g}",
                f"{1000 * report['woke_late_p99_s']:.1f} ms",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def remarks(report: dict[str, Any]) -> list[str]:
    """Returns the findings beside the table."""
    found = list(report["errors"])
    if "removed_after_s" in report:
        found.append(f"the rank was removed {report['removed_after_s']:.1f} s after it")
    if report["aborted"]:
        found.append(f"{report['aborted']} healthy ranks ended without a result")
    return found


def failed(report: dict[str, Any]) -> bool:
    """Whether a run violated a guarantee."""
    lost = report["conservation_error"] != 0 and report["fault"] != "killed"
    return bool(lost or report["aborted"] or report["errors"])


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--faults", nargs="+", choices=FAULTS, default=FAULTS, metavar="NAME")
    add(
        "--deadlines",
        nargs="+",
        choices=["fixed", "learned"],
        default=["fixed", "learned"],
        metavar="KIND",
        help="fixed, learned (default both)",
    )
    add(
        "--mebibytes",
        nargs="+",
        type=int,
        choices=list(DEADLINES_S),
        default=[1],
        metavar="MIB",
        help="sizes of the bucket, of 1 and 25 (default 1)",
    )
    add(
        "--deadline-s",
        type=float,
        metavar="T",
        help="the fixed deadline (default ten times a healthy call on two cores)",
    )
    add("--calls", type=int, default=300, help="calls of the session (default 300)")
    add("--json", type=Path, metavar="FILE", help="file for all figures, as JSON")
    return parser.parse_args()


def main() -> int:
    """Runs the cells and prints the table; returns the exit code."""
    args = parse_arguments()
    fixed = {size: args.deadline_s or DEADLINES_S[size] for size in args.mebibytes}
    cells = [
        Cell(fault, fixed[size] if kind == "fixed" else 0.0, size, args.calls)
        for size in args.mebibytes
        for kind in args.deadlines
        for fault in args.faults
    ]
    reports = []
    for number, cell in enumerate(cells, 1):
        began = time.monotonic()
        reports.append(summary(cell, run(cell)))
        print(
            f"{number}/{len(cells)} {cell.title}: {time.monotonic() - began:.0f} s",
            *remarks(reports[-1]),
            sep="\n    ",
            file=sys.stderr,
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(reports, indent=1) + "\n")
    print(
        f"{RANKS} ranks, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f}, {args.calls} calls"
    )
    print(show(reports))
    return 1 if any(map(failed, reports)) else 0


if __name__ == "__main__":
    sys.exit(main())
