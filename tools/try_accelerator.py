"""Examines the calls of this package on accelerators, or rehearses it on CPU devices.

    python tools/try_accelerator.py                         ranks that share one GPU
    srun -N 2 python tools/try_accelerator.py --hosts       a device on each host
    python tools/try_accelerator.py --platform cpu --small  rehearsal

Each section is a launch of tools/accelerator_ranks.py on this host, with a time limit:
after a crash or a hang the next section runs. With --hosts another program starts the
ranks, and this process is one of them: it compares sums and times with lax.psum, and
ends at a hang. Exit code: 1 if a section is WRONG or HUNG, otherwise 0.
"""

import argparse
import contextlib
import dataclasses
import faulthandler
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import accelerator_ranks
import jax

import jax_optireduce as jo

RANKS = Path(accelerator_ranks.__file__).resolve()

# Time for the end of the processes after a limit. Chosen.
END_S = 5.0

# The ways of calls on CPU devices: that of accelerators, and that of CPU programs.
AS_ACCELERATOR = {"JAX_OPTIREDUCE_HOST_CALL": "host_computation"}
ON_CPU = {"JAX_PLATFORMS": "cpu", "JAX_OPTIREDUCE_HOST_CALL": ""}

# Source: the documentation of JAX. "{folder}" is that of the section.
CACHE = {
    "JAX_COMPILATION_CACHE_DIR": "{folder}/cache",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
SCHEDULER = {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true"}

# The exit code of a launch with a killed rank.
KILLED = 128 + signal.SIGKILL

# Chosen: losses of GPU and CPU devices have had equal digits, of which three are shown.
LOSS_LIMIT = 0.02

# The lines of each rank, by its name.
Lines = dict[str, list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the examination.

    Attributes:
      name: shown.
      tasks: of each rank.
      limit_s: longest time, in seconds.
      ranks: number of ranks; 0: that of the command line.
      launches: the environment variables of each launch.
      exit_code: of the launcher.
      hosts: whether it also runs with --hosts.
    """

    name: str
    tasks: tuple[str, ...]
    limit_s: float
    ranks: int = 0
    launches: tuple[Mapping[str, str], ...] = ({},)
    exit_code: int = 0
    hosts: bool = False


# The most important sections come first.
SECTIONS = (
    Section("sums", ("sums",), 90, hosts=True),
    Section("one-rank", ("sums", "times"), 90, ranks=1),
    Section("train", ("train",), 60, hosts=True),
    Section("stress", ("stress",), 60, hosts=True),
    Section("times", ("times",), 75, hosts=True),
    Section("overlap", ("overlap",), 75, hosts=True),
    Section("dead-rank-bounded", ("dead-bounded",), 60, 3, exit_code=KILLED),
    Section("dead-rank-exact", ("dead-exact",), 50, 3, exit_code=KILLED),
    Section("cache", ("cached",), 80, launches=(CACHE, CACHE)),
    Section("overlap-scheduler", ("overlap",), 75, launches=(SCHEDULER,)),
    Section("fine-tuning", ("finetune",), 120, launches=({}, ON_CPU)),
    Section("four-ranks", ("sums", "train"), 90, 4),
)


class Report:
    """The results; the files are complete after each section.

    Attributes:
      speaks: whether all results are printed and written, as those of rank 0.
      folder: of the results.
      results: the contents of result.json.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._budget_s, self._begin, self.speaks = args.budget, time.monotonic(), True
        self.folder = args.out or Path(tempfile.mkdtemp(prefix="try-accelerator-"))
        self.folder = self.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        packages = importlib.metadata.distributions()
        names = re.compile("jax|nvidia|numpy|flax|optax|orbax", re.IGNORECASE)
        versions = {p.name: p.version for p in packages if names.match(p.name)}
        self.results = {"arguments": sys.argv[1:], "packages": versions, "sections": {}}

    def left_s(self) -> float:
        """Returns the seconds that are left."""
        return self._budget_s - (time.monotonic() - self._begin)

    def say(self, text: str) -> None:
        """Prints a line."""
        sys.stdout.write(f"[{self._budget_s - self.left_s():5.0f} s] {text}\n")
        sys.stdout.flush()

    def add_facts(self) -> None:
        """Adds the findings of other programs about this host."""
        doctor = [sys.executable, "-m", "jax_optireduce", "doctor"]
        for command in (doctor, ["nvidia-smi"]):
            with contextlib.suppress(FileNotFoundError):
                _, output = run(command, os.environ, self.folder, 60)
                self.results[command[-1]] = output.splitlines()

    def conclude(self, name: str, state: str, faults: list[str], lines: Lines) -> None:
        """Adds a section: its state is ok, WRONG, HUNG or left out."""
        compared = sum("right" in line for own in lines.values() for line in own)
        text = "; ".join(fault[:300] for fault in faults[:4])
        shown = {k: v for k, v in lines.items() if re.match("rank 0|launches", k)}
        self.results["sections"][name] = {
            "state": state,
            "compared": compared,
            "faults": faults,
            "lines": shown,
        }
        if self.speaks or state != "ok":
            self.say(f"{name}: {state}, {text or f'{compared} compared'}")
        if self.speaks:
            text = json.dumps(self.results, indent=1)
            (self.folder / "result.json").write_text(text + "\n")

    def end(self) -> int:
        """Prints times and other figures; returns the exit code."""
        states = {k: v["state"] for k, v in self.results["sections"].items()}
        bad = [f"{name} {state}" for name, state in states.items() if state != "ok"]
        if self.speaks:
            for row in rows_of(self.results["sections"]):
                self.say(row)
            self.say(f"{len(states)} sections; not ok: {', '.join(bad) or 'none'}")
            files = f"all files of {self.folder}, above all result.json"
            self.say(f"Please report this output, and {files}")
        return int(bool({"WRONG", "HUNG"} & set(states.values())))


def rows_of(sections: Mapping[str, Any]) -> Iterator[str]:
    """Yields times by size, and other figures."""
    lines = [
        (name, line)
        for name, section in sections.items()
        for own in section["lines"].values()
        for line in own
    ]
    found = {(s, x["name"], x["kib"]): x["ms"] for s, x in lines if "kib" in x}
    sizes = sorted({kib for *_, kib in found})
    yield f"{'median time in ms, by KiB':<36}" + "".join(f"{k:>10}" for k in sizes)
    for section, name in dict.fromkeys((s, n) for s, n, _ in found):
        times_ms = [found.get((section, name, k), float("nan")) for k in sizes]
        cells = "".join(f"{time_ms:10.2f}" for time_ms in times_ms)
        yield f"{f'{section}: {name}':<36}{cells}"
    for section, line in lines:
        if "text" in line and "bits" not in line and line.get("right", True):
            yield f"{section}: {line['name']}: {line['text'][:300]}"


def lines_of(folder: Path, suffix: str = "") -> Lines:
    """Returns the lines of all ranks of a launch."""
    return {
        path.stem.replace("rank", "rank ") + suffix: [
            json.loads(line) for line in path.read_text().splitlines()
        ]
        for path in sorted(folder.glob("rank*.jsonl"))
    }


def faults_of(lines: Lines) -> list[str]:
    """Returns wrong comparisons, and those whose bits differ between ranks."""
    compared = [(r, x) for r, found in lines.items() for x in found if "right" in x]
    faults = [f"{r}: {x['name']}: {x['text']}" for r, x in compared if not x["right"]]
    bits: dict[str, set[str]] = {}
    for _, line in compared:
        bits.setdefault(line["name"], set()).add(line.get("bits", ""))
    faults += [f"ranks differ: {name}" for name, own in bits.items() if len(own) > 1]
    return faults if compared else ["no comparison was made"]


def of_launches(section: str, lines: Lines, outputs: Sequence[str]) -> Lines:
    """Returns the comparison between the launches of a section."""
    if section == "cache":
        hits = [x["hits"] for x in lines["rank 0 of launch 2"] if "hits" in x]
        name, text = "the second launch reads the cache", f"hits: {hits}"
        right = sum(hits) > 0
    else:
        pattern = re.compile(r"step +\d+.*?loss +([\d.]+)")
        losses = [[float(x) for x in pattern.findall(output)] for output in outputs]
        apart = [abs(a - b) for a, b in zip(*losses, strict=False)]
        name, text = "losses equal those of CPU devices", str(losses)
        right = bool(apart) and max(apart) <= LOSS_LIMIT
    return {"launches": [{"name": name, "right": right, "text": text}]}


def examine(report: Report, args: argparse.Namespace, section: Section) -> None:
    """Launches the ranks of a section, and judges their results."""
    end_s = report.left_s() - END_S
    end_s -= min(section.limit_s, end_s)
    lines: Lines = {}
    outputs: list[str] = []
    code: int | None = 0
    several, wanted = len(section.launches) > 1, section.exit_code
    for number, variables in enumerate(section.launches, 1):
        folder = report.folder / f"{section.name}-{number}"
        folder.mkdir()
        limit_s = report.left_s() - END_S - end_s
        code, output = launch(args, section, variables, folder, limit_s)
        outputs.append(output)
        lines |= lines_of(folder, f" of launch {number}" if several else "")
        if code != wanted:
            break
    if several and code == wanted:
        lines |= of_launches(section.name, lines, outputs)
    faults = faults_of(lines)
    if code is None:
        last = lines.get("rank 0", [{"name": "the start"}])[-1]["name"]
        faults.insert(0, f"longer than the limit, after: {last}")
    elif code != wanted:
        errors = [x for x in outputs[-1].splitlines() if "Error" in x] or [""]
        faults.insert(0, f"exit code {code}, not {wanted}: {errors[-1]}")
    state = "HUNG" if code is None else "WRONG" if faults else "ok"
    report.conclude(section.name, state, faults, lines)


def launch(
    args: argparse.Namespace,
    section: Section,
    variables: Mapping[str, str],
    folder: Path,
    limit_s: float,
) -> tuple[int | None, str]:
    """Runs the ranks of a section; returns the result of `run`."""
    words = ["-m", "jax_optireduce", "launch", "--cores", "none"]
    words += ["-n", str(section.ranks or args.ranks)]
    words += ["--keep-going"] if section.exit_code else []
    words += [str(RANKS), str(folder), *section.tasks]
    # Counted from the end of the imports of a rank, which take seconds.
    words += ["--stacks-after", str(max(limit_s - 15, limit_s / 2))]
    words += ["--small"] if args.small else []
    if args.profile:
        words += ["--profile", str(args.profile.resolve() / section.name)]
    environment = {
        "CUDA_VISIBLE_DEVICES": "0",
        **os.environ,
        "JAX_PLATFORMS": args.platform,
        # Devices compute in float32, as NumPy does.
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        # The ranks share the memory of the GPU.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        **(AS_ACCELERATOR if args.platform == "cpu" else {}),
        **{k: v.format(folder=folder.parent) for k, v in variables.items()},
    }
    if "XLA_FLAGS" in variables:
        environment["XLA_FLAGS"] += " " + os.environ.get("XLA_FLAGS", "")
    return run([sys.executable, *words], environment, folder, limit_s)


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, limit_s: float
) -> tuple[int | None, str]:
    """Runs a command; returns its exit code, None after the limit, and its output."""
    path = folder / "output.txt"
    with path.open("w") as file, contextlib.suppress(subprocess.TimeoutExpired):
        code = None
        # In a folder without a checkout, whose package `python -m` would take. With
        # the launcher the kernel ends its ranks.
        code = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        ).returncode
    return code, path.read_text(errors="replace")


def examine_launches(
    report: Report, args: argparse.Namespace, sections: Sequence[Section]
) -> None:
    """Examines the sections for which enough time is left."""
    report.add_facts()
    modules = ("flax", "orbax", "safetensors", "tokenizers", "matplotlib")
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    for section in sections:
        if report.left_s() < END_S + min(section.limit_s, 20):
            report.conclude(section.name, "left out", ["the budget is over"], {})
        elif section.name == "fine-tuning" and missing:
            report.conclude(section.name, "left out", [f"without {missing}"], {})
        else:
            examine(report, args, section)


def examine_host(
    report: Report, args: argparse.Namespace, sections: Sequence[Section]
) -> None:
    """Runs the sections in this process, which is one of the ranks."""
    present = "start"

    def end() -> None:
        report.conclude(present, "HUNG", ["the budget is over"], {})
        faulthandler.dump_traceback()
        os._exit(report.end())

    timer = threading.Timer(args.budget, end)
    timer.daemon = True
    timer.start()
    os.environ.update(AS_ACCELERATOR if args.platform == "cpu" else {})
    jax.config.update("jax_platforms", args.platform)
    jax.config.update("jax_default_matmul_precision", "highest")
    with jo.init(**accelerator_ranks.PATIENT) as communicator:
        report.speaks = communicator.rank == 0
        if report.speaks:
            report.add_facts()
        for section in sections:
            present = section.name
            folder = report.folder / f"{present}-{communicator.rank}"
            folder.mkdir()
            try:
                rank = accelerator_ranks.Rank(
                    folder, small=args.small, profile=args.profile, with_lax=True
                )
                for task in section.tasks:
                    rank.run(task)
            finally:
                lines = lines_of(folder)
                faults = faults_of(lines)
                report.conclude(present, "WRONG" if faults else "ok", faults, lines)
    timer.cancel()


def main() -> int:
    """Examines the devices; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, names = parser.add_argument, [section.name for section in SECTIONS]
    add("--platform", default="cuda", help="cuda (default), rocm, tpu or cpu")
    add("--hosts", action="store_true", help="this process is one of the ranks")
    add("--ranks", type=int, default=2, help="that share the device (default 2)")
    add("--only", nargs="+", choices=names, default=names, help="sections")
    add("--small", action="store_true", help="small sizes")
    add("--budget", type=float, default=540, help="seconds in all (default 540)")
    add("--out", type=Path, help="folder for the results (default: a temporary one)")
    add("--profile", type=Path, help="folder for the profiles of overlap")
    args = parser.parse_args()
    if args.out and (args.out / "result.json").exists():
        parser.error(f"{args.out} has the results of another run")
    sections = [s for s in SECTIONS if s.name in args.only]
    report = Report(args)
    if args.hosts:
        examine_host(report, args, [s for s in sections if s.hosts])
    else:
        examine_launches(report, args, sections)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
