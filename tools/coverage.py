"""Measures the coverage of protocol/, runtime/ and net/ by the tests.

    python tools/coverage.py --build build/coverage

The tool prints the lines without execution. It needs gcovr, which `make coverage`
installs. Lines that only a failed invariant or an exception executes do not count.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from side_build import ROOT, build, make_package

_LAYERS = ("protocol", "runtime", "net")
_TESTS = ("tests/ffi", "tests/differential", "tests/multiprocess")


def main() -> int:
    """Builds with counters in the code, runs the tests, prints the report."""
    parser = argparse.ArgumentParser(description="coverage of the C++ core")
    parser.add_argument("--build", required=True, type=Path)
    parser.add_argument("--seeds", default="1000", help="of the simulator")
    parser.add_argument("tests", nargs="*", default=_TESTS, help="for pytest")
    arguments = parser.parse_args()
    folder = arguments.build.resolve()
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DOPTIREDUCE_COVERAGE=ON"]
    build(ROOT, folder, options, ["optireduce_simulate", "optireduce_stress"])
    for old in folder.rglob("*.gcda"):
        old.unlink()
    environment = make_package(folder, folder / "python")
    simulate = folder / "optireduce_simulate"
    regressions = ROOT / "tests" / "simulation" / "regressions.txt"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    commands = [
        [simulate, "--file", regressions],
        [simulate, "--seed", "1", "--count", arguments.seeds, "--size", "small"],
        [folder / "optireduce_stress"],
        [*pytest, *arguments.tests],
    ]
    codes = [
        subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode
        for command in commands
    ]
    gcovr = shutil.which("gcovr", path=Path(sys.executable).parent) or "gcovr"
    filters = [f"--filter={ROOT}/ffi/{layer}/" for layer in _LAYERS]
    # Tests do not execute failed invariants.
    excluded = ["--exclude-lines-by-pattern", r".*(OR_CHECK|FailCheck)\(.*"]
    report = [gcovr, "--root", ROOT, *filters, *excluded, "--exclude-throw-branches"]
    report += [f"-j{os.cpu_count()}", "--sort=uncovered-number", folder]
    subprocess.run(report, check=True, cwd=ROOT)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
