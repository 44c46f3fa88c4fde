"""Plants bugs in the C++ core, one at a time, and prints the undetected ones.

    python tools/mutants.py                     # all of them: `make mutants`
    python tools/mutants.py --only 12 40-45     # some
    python tools/mutants.py --list

tests/mutants/*.toml lists the bugs. All are built into one copy of the sources, each
behind a switch that a number in the environment selects: a hundred bugs cost one build.
An entry has code that occurs once in its file, and its replacement:

    [[mutant]]
    bug = "A lost result is not retransmitted"
    file = "protocol/call/outbox.cc"
    within = "if (!sum_retransmissions_.empty()) { return"  # for a repeated `code`
    code = "!sum_retransmissions_.empty()"
    with = "false"
    survives = "..."  # the reason, if no check can find the bug

Code that ends with ";" or "}" is one or more statements, any other is an expression.
White space matches any white space. Exit code 0: every bug was found, or its entry has
a reason.
"""

import argparse
import dataclasses
import functools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import side_build
from side_build import ROOT

LISTS = ROOT / "tests" / "mutants"
SWITCH = "OPTIREDUCE_PLANTED"
# Bugs are planted in the first folder; the second has its bindings for Python.
_COPIED = ("ffi", "tests/native")

# A check hangs after this many times its usual time, and some seconds.
# Chosen: other programs share the machine.
_SLOW_FACTOR = 5
_SLOW_S = 20
# Chosen: many times the memory of a check; it ends a bug that takes all memory.
_MEMORY_BYTES_MAX = 8 << 30

# In the copy only. Static storage: it is read before main().
_HEADER = """\
#ifndef OPTIREDUCE_PLANTED_H_
#define OPTIREDUCE_PLANTED_H_
#include <cstdlib>
namespace optireduce {
inline const int planted_number = [] {
  const char* const text = std::getenv("OPTIREDUCE_PLANTED");
  return text == nullptr ? 0 : std::atoi(text);
}();
inline bool Planted(int number) { return planted_number == number; }
}  // namespace optireduce
#endif
"""


class ListError(Exception):
    """The list of bugs does not fit the sources."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One planted bug; fields as in the list."""

    number: int
    bug: str
    file: str
    code: str
    replacement: str
    within: str | None = None
    survives: str | None = None

    def place(self, source: str) -> tuple[int, int]:
        """Returns the begin and end of `code` in the text of its file."""
        begin, end = 0, len(source)
        for snippet in (self.within, self.code):
            if snippet is None:
                continue
            found = [
                match.span() for match in _pattern(snippet).finditer(source, begin, end)
            ]
            if len(found) != 1:
                raise ListError(
                    f"{self.number} ({self.bug}): expected once in ffi/{self.file}, "
                    f"found {len(found)} times: {snippet}"
                )
            begin, end = found[0]
        before = _COMMENT.sub("", source[:begin]).rstrip()
        if self._is_statement and not before.endswith((*";{}:)", "else")):
            raise ListError(
                f"{self.number} ({self.bug}): expected whole statements in "
                f"ffi/{self.file}, found the end of one: {self.code}"
            )
        return begin, end

    @property
    def _is_statement(self) -> bool:
        return self.code.rstrip().endswith((";", "}"))

    def planted(self, original: str) -> str:
        """Returns code that is `original` unless this bug is selected."""
        chosen = f"::optireduce::Planted({self.number})"
        if self._is_statement:
            return f"{{ if ({chosen}) {{ {self.replacement} }} else {{ {original} }} }}"
        return f"({chosen} ? ({self.replacement}) : ({original}))"


_COMMENT = re.compile(r"//[^\n]*")


@functools.cache
def _pattern(snippet: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(re.escape(word) for word in snippet.split()))


def read_lists(folder: Path = LISTS) -> list[Mutant]:
    """Returns all bugs, numbered from 1 in the order of the lists."""
    mutants: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        with path.open("rb") as file:
            entries = tomllib.load(file)["mutant"]
        for entry in entries:
            fields = {**entry, "replacement": entry["with"]}
            del fields["with"]
            mutants.append(Mutant(number=len(mutants) + 1, **fields))
    return mutants


def plant(source: str, mutants: Iterable[Mutant]) -> str:
    """Returns the source with the switches of the bugs of its file."""
    places = [(*mutant.place(source), mutant) for mutant in mutants]
    # The outer of two bugs with the same begin is first.
    places.sort(key=lambda place: (place[0], -place[1], place[2].number))
    return _plant(source, 0, len(source), places)


def _plant(
    source: str, begin: int, end: int, places: Sequence[tuple[int, int, Mutant]]
) -> str:
    text = ""
    while places:
        first, last, mutant = places[0]
        inner = [place for place in places[1:] if place[0] < last]
        for _, inner_last, other in inner:
            if inner_last > last:
                raise ListError(f"{mutant.number} and {other.number} overlap")
        original = _plant(source, first, last, inner)
        text += source[begin:first] + mutant.planted(original)
        begin, places = last, places[1 + len(inner) :]
    return text + source[begin:end]


# ---- The copy.


def make_copy(copy: Path, mutants: Sequence[Mutant]) -> None:
    """Writes the sources with all bugs."""
    of_file: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        of_file.setdefault(mutant.file, []).append(mutant)
    sources = {
        path.relative_to(ROOT).as_posix(): path
        for folder in _COPIED
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file()
    }
    missing = {f"ffi/{name}" for name in of_file} - sources.keys()
    if missing:
        raise ListError(f"no such files: {sorted(missing)}")
    for name, path in sources.items():
        planted = of_file.get(name.removeprefix("ffi/"), [])
        side_build.write(copy / name, plant(path.read_text(), planted))
    for folder in _COPIED:
        for old in (copy / folder).rglob("*"):
            if old.is_file() and old.relative_to(copy).as_posix() not in sources:
                old.unlink()
    side_build.write(copy / "planted.h", _HEADER)


def _build(copy: Path) -> dict[str, str]:
    """Builds the copy; returns the environment for Python to use it."""
    options = ["-DCMAKE_BUILD_TYPE=Release"]
    options += [f"-DCMAKE_CXX_FLAGS=-include {copy / 'planted.h'}"]
    programs = ["optireduce_simulate", "optireduce_stress"]
    side_build.build(copy, copy / "build", options, programs)
    return side_build.make_package(copy / "build", copy / "python")


# ---- The checks.


@dataclasses.dataclass(frozen=True)
class Check:
    """A program that fails when it finds a bug."""

    name: str
    command: tuple[str | Path, ...]
    # Pattern of the lines to print after a failure.
    shows: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one bug."""

    mutant: Mutant
    killed_by: str | None
    seconds: float


# Name of a source file -> the first tests of its bugs, beside the one with its name.
_NEAR = {
    "admission": "test_refusals test_held_back test_deferral",
    "all_gather_stage": "test_quorum test_exchange test_late_data test_lossy_ends "
    "test_one_stage",
    "answer_time": "test_lag_monitor",
    "argument_checks": "test_endpoint",
    "attendance": "test_lag_monitor test_quorum",
    "bucket_layout": "test_exchange",
    "bucket_parts": "test_bucket_layout",
    "bucket_view": "test_exchange test_reduction",
    "call_lifecycle": "test_endpoint test_ends test_giving_up test_deferral",
    "call_sender": "test_relayed_sums test_exchange test_serving_order "
    "test_late_deferred test_endpoint",
    "call_start": "test_deferral test_ends test_giving_up test_endpoint",
    "call_stats_builder": "test_exchange test_lossy_ends",
    "call_timing": "test_early_exit test_deadline_controller test_learned_deadlines",
    "communicator": "test_call_monitor",
    "communicator_options": "test_communicator",
    "congestion_controller": "test_flow",
    "connectivity": "test_paxos test_membership",
    "deferred_data": "test_call_window test_lagging",
    "delivery_handler": "test_endpoint test_ends test_deferral",
    "directory": "test_announcements",
    "endpoint": "test_ends test_giving_up test_deferral test_peer_states",
    "exchange": "test_endpoint test_lossy_ends test_late_deferred test_deferral "
    "test_one_stage test_relayed_sums",
    "failure_detector": "test_endpoint test_ends test_giving_up test_deferral "
    "test_one_stage test_peer_states",
    "flow": "test_pacing",
    "received_numbers": "test_flow",
    "rtt_estimator": "test_flow",
    "given_up": "test_giving_up test_given_up_calls",
    "guarded_membership": "test_going_on test_paxos",
    "incast_controller": "test_congestion_controller",
    "lag_monitor": "test_lagging test_passed test_deferral test_quorum",
    "lane_membership": "test_going_on test_ends",
    "late_calls": "test_deferral test_endpoint",
    "late_rules": "test_exchange test_late_data test_lossy_ends test_learned_deadlines "
    "test_quorum",
    "latency_histogram": "test_deadline_controller",
    "membership": "test_paxos test_ballots",
    "membership_mailbox": "test_paxos test_membership",
    "membership_message": "test_membership",
    "mismatch_detector": "test_giving_up test_small_buckets test_endpoint test_ends",
    "outbox": "test_exchange test_late_deferred",
    "paxos": "test_paxos_state test_ballots",
    "peer": "test_keys test_endpoint",
    "rank_bitmap": "test_wire test_lies",
    "reduce_scatter_stage": "test_exchange test_late_deferred test_one_stage",
    "reduction": "test_endpoint test_lagging",
    "refusals": "test_held_back",
    "segment_codec": "test_late_deferred",
    "segment_receiver": "test_endpoint test_deferral test_one_stage test_ends "
    "test_quorum",
    "segment_store": "test_late_deferred test_late_data test_exchange",
    "shared_membership": "test_going_on",
    "succession": "test_going_on test_ends",
    "transmitter": "test_endpoint test_turns",
    "wait_monitor": "test_small_buckets test_giving_up test_held_back test_going_on",
    "wire": "test_lies test_announcements",
}
_NEAR_ALL_OF_THE_PROTOCOL = ["test_promises", "test_fuzz"]


def near(file: str) -> list[str]:
    """Returns the first tests of the bugs in a source file."""
    stem = Path(file).stem
    own = f"tests/ffi/test_{stem}.py"
    names = _NEAR.get(stem, "").split()
    if file.startswith("protocol/"):
        names += _NEAR_ALL_OF_THE_PROTOCOL
    others = [f"tests/ffi/{name}.py" for name in names]
    return [own, *others] if (ROOT / own).exists() else others


class Checks:
    """The checks of a bug: the quickest first, until one fails."""

    def __init__(self, copy: Path, quick: bool, environment: dict[str, str]) -> None:
        self.copy = copy
        self.environment = environment
        self.quick = quick
        simulate = copy / "build" / "optireduce_simulate"
        failed = r"^FAILED .*"
        self.simulated = [
            Check("seeds 1-400", (simulate, "--seed", "1", "--count", "400"), failed),
            Check("regressions", (simulate, "--file", _REGRESSIONS), failed),
        ]
        self.more_seeds = Check(
            "seeds 401-2000", (simulate, "--seed", "401", "--count", "1600"), failed
        )
        self.stress = Check(
            "stress", (copy / "build" / "optireduce_stress",), r"^FAILED .*"
        )
        self.limits_s: dict[str, float] = {}

    def pytest(self, *paths: str) -> Check:
        """Returns a check of these tests, or folders of tests."""
        # With those of `make long`.
        arguments = ("-x", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist")
        command = (sys.executable, "-m", "pytest", *arguments, *paths)
        name = " ".join(Path(path).name for path in paths)
        return Check(name, command, r"^(?:FAILED|ERROR) .*")

    def of(self, mutant: Mutant) -> list[Check]:
        """Returns the checks of one bug."""
        unit = self.pytest(*near(mutant.file))
        if mutant.file.startswith("runtime/"):
            first, last = [unit, self.stress], self.of_processes()
        else:
            first, last = [unit, *self.simulated], self.last()
        quick = self.quick or mutant.survives is not None
        return first if quick else [*first, self.pytest("tests/ffi"), *last]

    def of_processes(self) -> list[Check]:
        """Returns checks with several devices in a process, or several processes."""
        files = ("monitor_processes", "failures", "giving_up_processes")
        return [
            self.pytest("tests/differential"),
            *(self.pytest(f"tests/multiprocess/test_{name}.py") for name in files),
        ]

    def last(self) -> list[Check]:
        """Returns the long checks."""
        return [
            self.more_seeds,
            self.pytest(
                "tests/simulation/test_simulation.py",
                "tests/simulation/test_late_ranks.py",
                "tests/simulation/test_lossy_times.py",
            ),
            self.pytest("tests/multiprocess/test_retransmissions.py"),
        ]

    def run(self, check: Check, number: int) -> tuple[str | None, float]:
        """Returns the failure of a check, or None, and its time in seconds."""
        environment = {
            **self.environment,
            SWITCH: str(number),
            # Hypothesis must not reuse the examples of one bug for the next.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.copy / "hypothesis" / str(number)),
        }
        limit_s = self.limits_s.get(check.name, 900.0)
        start = time.monotonic()
        with subprocess.Popen(
            check.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                output = process.communicate(timeout=limit_s)[0].decode(
                    errors="replace"
                )
                failure = self.failure_of(check, process.returncode, output)
            except subprocess.TimeoutExpired:
                failure = f"hangs (more than {limit_s:.0f} s)"
            finally:
                _end(process)
        shutil.rmtree(environment["HYPOTHESIS_STORAGE_DIRECTORY"], ignore_errors=True)
        return failure, time.monotonic() - start

    @staticmethod
    def failure_of(check: Check, code: int, output: str) -> str | None:
        """Returns the output of a failed check, or None."""
        if code == 0:
            return None
        shown = re.findall(check.shows, output, re.MULTILINE)
        return shown[0] if shown else f"exit code {code}: {output[-200:]}"

    def measure(self, some: Iterable[Mutant], pool: ThreadPoolExecutor) -> None:
        """Runs the checks without a bug, and sets their time limits."""
        checks = {c.name: c for mutant in some for c in self.of(mutant)}.values()
        for check, (failure, seconds) in zip(
            checks, pool.map(lambda check: self.run(check, 0), checks), strict=True
        ):
            _say(f"without a bug: {check.name} {failure or 'passes'} ({seconds:.0f} s)")
            if failure:
                raise ListError(f"{check.name} fails without a bug")
            self.limits_s[check.name] = _SLOW_FACTOR * seconds + _SLOW_S

    def outcome(self, mutant: Mutant) -> Outcome:
        """Runs the checks of a bug until one finds it."""
        spent = 0.0
        for check in self.of(mutant):
            failure, seconds = self.run(check, mutant.number)
            spent += seconds
            if failure:
                return Outcome(mutant, f"{check.name}: {failure}", spent)
        return Outcome(mutant, None, spent)


_REGRESSIONS = ROOT / "tests" / "simulation" / "regressions.txt"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


# ---- The report.


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _row(outcome: Outcome, columns: int | None = None) -> str:
    mutant = outcome.mutant
    verdict = outcome.killed_by or (
        "survives, explained" if mutant.survives else "SURVIVES"
    )
    row = f"{mutant.number:4} {outcome.seconds:5.0f} s  {mutant.file}: {mutant.bug}"
    return f"{row}\n             {verdict}"[:columns]


def _report(outcomes: Sequence[Outcome], path: Path) -> bool:
    """Writes the outcomes to a file; returns whether all survivors have a reason."""
    path.write_text("\n".join(_row(outcome) for outcome in outcomes) + "\n")
    alive = [outcome for outcome in outcomes if outcome.killed_by is None]
    unexplained = [outcome for outcome in alive if not outcome.mutant.survives]
    _say(
        f"\n{len(outcomes)} bugs, {len(outcomes) - len(alive)} found, "
        f"{len(alive)} survive, {len(unexplained)} of them unexplained ({path})"
    )
    for outcome in alive:
        _say(_row(outcome))
        if outcome.mutant.survives:
            _say(f"             {outcome.mutant.survives}")
    for outcome in outcomes:
        if outcome.killed_by and outcome.mutant.survives:
            _say(f"{outcome.mutant.number} is found: remove its `survives`")
    return not unexplained


def _chosen(texts: Sequence[str]) -> Callable[[Mutant], bool]:
    """Returns the filter of texts such as "7" and "10-20"."""
    numbers: set[int] = set()
    for text in texts:
        first, _, last = text.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return lambda mutant: not numbers or mutant.number in numbers


def main() -> int:
    """Runs the tool."""
    parser = argparse.ArgumentParser(description="planted bugs and their checks")
    parser.add_argument("--only", nargs="+", default=[], metavar="NUMBER")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--build", default=ROOT / "build" / "mutants", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--quick", action="store_true", help="omit the long checks")
    arguments = parser.parse_args()
    mutants = read_lists()
    chosen = [mutant for mutant in mutants if _chosen(arguments.only)(mutant)]
    if arguments.list:
        for mutant in chosen:
            _say(f"{mutant.number:4} {mutant.file}: {mutant.bug}")
        return 0
    copy = arguments.build.resolve()
    try:
        make_copy(copy, mutants)
        environment = _build(copy)
        # Limits of the checks, which inherit them.
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        checks = Checks(copy, arguments.quick, environment)
        outcomes = []
        with ThreadPoolExecutor(max_workers=arguments.jobs) as pool:
            checks.measure(chosen, pool)
            for outcome in pool.map(checks.outcome, chosen):
                outcomes.append(outcome)
                _say(_row(outcome, 240))
    except ListError as error:
        _say(f"error: {error}")
        return 2
    return 0 if _report(outcomes, copy / "report.txt") else 1


if __name__ == "__main__":
    sys.exit(main())
