"""Plants bugs in the sources, one at a time, and prints the undetected ones.

    python tools/mutants.py                     # all of them: `make mutants`
    python tools/mutants.py --only 12 40-45     # some
    python tools/mutants.py --list

tests/mutants/*.toml lists the bugs. All are built into one copy of the sources, each
behind a switch that a number in the environment selects: all bugs cost one build. An
entry has code that occurs once in its file, and its replacement:

    [["ffi/protocol/call/outbox.cc"]]
    bug = "A lost result is not retransmitted"
    within = "if (!sum_retransmissions_.empty()) { return"  # for a repeated `code`
    code = "!sum_retransmissions_.empty()"
    with = "false"

C++ code that ends with ";" or "}" is one or more statements; any other code is an
expression. White space matches any white space. Exit code 0: every bug was found.
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
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import side_build
from side_build import ROOT

LISTS = ROOT / "tests" / "mutants"
SWITCH = "OPTIREDUCE_PLANTED"
# Bugs are planted in two folders; the third binds the first to the tests.
_COPIED = ("ffi", "jax_optireduce", "tests/native")

# A check hangs after this many times its usual time, and some seconds.
# Chosen: other programs share the machine.
_SLOW_FACTOR = 5
_SLOW_S = 20
# Chosen: many times the memory of a check; it ends a bug that takes all memory.
_MEMORY_BYTES_MAX = 8 << 30

_REGRESSIONS = ROOT / "tests" / "simulation" / "regressions.txt"

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

    def __init__(self, mutant: "Mutant", problem: str) -> None:
        super().__init__(
            f"the bug {mutant.bug!r} of tests/mutants does not fit {mutant.file}: "
            f"{problem}. If the rule that it breaks still holds, quote the code as it "
            "is now; if the rule is gone, delete the entry."
        )


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One planted bug; fields as in the list."""

    number: int
    bug: str
    file: str
    code: str
    replacement: str
    within: str | None = None

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
                    self, f"found {len(found)} times, expected once: {snippet}"
                )
            begin, end = found[0]
        before = _COMMENT.sub("", source[:begin]).rstrip()
        if self._is_statement and not before.endswith((*";{}:)", "else")):
            raise ListError(
                self, f"expected whole statements, found the end of one: {self.code}"
            )
        return begin, end

    @property
    def _is_statement(self) -> bool:
        return not self._is_python and self.code.rstrip().endswith((";", "}"))

    @property
    def _is_python(self) -> bool:
        return self.file.endswith(".py")

    def planted(self, original: str) -> str:
        """Returns code that is `original` unless this bug is selected."""
        if self._is_python:
            chosen = f'__import__("os").environ.get("{SWITCH}") == "{self.number}"'
            return f"(({self.replacement}) if {chosen} else ({original}))"
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
        for file, entries in tomllib.loads(path.read_text()).items():
            for entry in entries:
                replacement = entry.pop("with")
                mutants.append(
                    Mutant(
                        len(mutants) + 1, file=file, **entry, replacement=replacement
                    )
                )
    return mutants


def plant(source: str, mutants: Iterable[Mutant]) -> str:
    """Returns the source with the switches of the bugs of its file."""
    text, done, before = "", 0, ""
    places = [(*mutant.place(source), mutant) for mutant in mutants]
    for begin, end, mutant in sorted(places, key=lambda place: place[:2]):
        if begin < done:
            raise ListError(mutant, f"it overlaps with {before!r}")
        text += source[done:begin] + mutant.planted(source[begin:end])
        done, before = end, mutant.bug
    return text + source[done:]


# ---- The copy.


def make_copy(copy: Path, mutants: Sequence[Mutant]) -> None:
    """Writes the sources with all bugs."""
    sources = {
        path.relative_to(ROOT).as_posix(): path
        for folder in _COPIED
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and (folder != "jax_optireduce" or path.suffix == ".py")
    }
    of_file: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        if mutant.file not in sources:
            raise ListError(mutant, "there is no such file")
        of_file.setdefault(mutant.file, []).append(mutant)
    for name, path in sources.items():
        side_build.write(copy / name, plant(path.read_text(), of_file.get(name, [])))
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
    return side_build.make_package(copy / "build", copy / "python", source=copy)


# ---- The checks.


@dataclasses.dataclass(frozen=True)
class Check:
    """A program that fails when it finds a bug."""

    name: str
    command: tuple[str | Path, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one bug."""

    mutant: Mutant
    killed_by: str | None
    seconds: float


def own_tests(file: str) -> list[str]:
    """Returns the tests with the name of a source file."""
    name = f"test_{Path(file).stem}.py"
    return sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob(name)
    )


class BrokenCheckError(Exception):
    """A check fails without a bug."""


class Checks:
    """The checks of a bug: the quickest first, until one fails."""

    def __init__(self, copy: Path, quick: bool, environment: dict[str, str]) -> None:
        self.copy = copy
        self.environment = environment
        self.quick = quick
        simulate = copy / "build" / "optireduce_simulate"
        self.simulated = [
            Check("seeds 1-400", (simulate, "--seed", "1", "--count", "400")),
            Check("regressions", (simulate, "--file", _REGRESSIONS)),
        ]
        self.more_seeds = Check(
            "seeds 401-2000", (simulate, "--seed", "401", "--count", "1600")
        )
        self.stress = Check("stress", (copy / "build" / "optireduce_stress",))
        self.limits_s: dict[str, float] = {}

    def pytest(self, *paths: str) -> Check:
        """Returns a check of these tests, or folders of tests."""
        # -P: the package is that of the copy, not that of the working directory.
        # An empty -m includes the tests of `make long`.
        arguments = ("-x", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist")
        command = (sys.executable, "-P", "-m", "pytest", *arguments, *paths)
        name = " ".join(Path(path).name for path in paths)
        return Check(name, command)

    def of(self, mutant: Mutant) -> list[Check]:
        """Returns the checks of one bug."""
        own = own_tests(mutant.file)
        first = [self.pytest(*own)] if own else []
        units = self.pytest("tests/ffi")
        if mutant.file.startswith("ffi/protocol/"):
            first, last = [*first, *self.simulated], [units, *self.last()]
        elif mutant.file.startswith("ffi/runtime/"):
            first, last = [*first, self.stress], [units, *self.of_processes()]
        elif mutant.file.startswith("ffi/"):
            last = [units, *self.of_processes()]
        else:
            last = [self.pytest("tests/unit"), *self.of_processes()]
        # Where no test has the name of the file, the first of the layer are quick.
        return first or last[:1] if self.quick else [*first, *last]

    def of_processes(self) -> list[Check]:
        """Returns checks with several devices in a process, or several processes."""
        files = (
            "values_processes",
            "monitor_processes",
            "failures",
            "giving_up_processes",
        )
        return [
            self.pytest("tests/differential"),
            *(self.pytest(f"tests/multiprocess/test_{name}.py") for name in files),
        ]

    def last(self) -> list[Check]:
        """Returns the long checks of the protocol."""
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
                failure = self.failure_of(process.returncode, output)
            except subprocess.TimeoutExpired:
                failure = f"hangs (more than {limit_s:.0f} s)"
            finally:
                _end(process)
        shutil.rmtree(environment["HYPOTHESIS_STORAGE_DIRECTORY"], ignore_errors=True)
        return failure, time.monotonic() - start

    @staticmethod
    def failure_of(code: int, output: str) -> str | None:
        """Returns the output of a failed check, or None."""
        if code == 0:
            return None
        shown = re.findall(r"^(?:FAILED|ERROR) .*", output, re.MULTILINE)
        return shown[0] if shown else f"exit code {code}: {output[-200:]}"

    def measure(self, some: Iterable[Mutant], pool: ThreadPoolExecutor) -> None:
        """Runs the checks without a bug, and sets their time limits."""
        checks = {c.name: c for mutant in some for c in self.of(mutant)}.values()
        for check, (failure, seconds) in zip(
            checks, pool.map(lambda check: self.run(check, 0), checks), strict=True
        ):
            _say(f"without a bug: {check.name} {failure or 'passes'} ({seconds:.0f} s)")
            if failure:
                raise BrokenCheckError(f"{check.name} fails without a bug")
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


def _row(outcome: Outcome) -> str:
    mutant = outcome.mutant
    row = f"{mutant.number:4} {outcome.seconds:5.0f} s  {mutant.file}: {mutant.bug}"
    return f"{row}\n             {outcome.killed_by or 'SURVIVES'}"


def _chosen(mutants: Sequence[Mutant], texts: Sequence[str]) -> list[Mutant]:
    """Returns the bugs of texts such as "7" and "10-20"; of no text, all."""
    numbers: set[int] = set()
    for text in texts:
        first, _, last = text.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return [mutant for mutant in mutants if not texts or mutant.number in numbers]


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
    chosen = _chosen(mutants, arguments.only)
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
        alive = []
        with ThreadPoolExecutor(max_workers=arguments.jobs) as pool:
            checks.measure(chosen, pool)
            for outcome in pool.map(checks.outcome, chosen):
                _say(_row(outcome))
                if outcome.killed_by is None:
                    alive.append(outcome)
    except (ListError, BrokenCheckError) as error:
        _say(f"error: {error}")
        return 2
    _say("\n".join([f"\n{len(chosen)} bugs, {len(alive)} survive", *map(_row, alive)]))
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
