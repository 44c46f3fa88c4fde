"""Runs Python with the package's module from a build under the address sanitizer.

    python tools/sanitized_python.py --build build/sanitize -m pytest tests/multiprocess

The build needs OPTIREDUCE_SANITIZE; `make asan-python` sets it. The runtime of the
sanitizer must be loaded before Python, together with the library of C++ exceptions,
which it needs at its start. Leaks of Python itself are not reported.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from side_build import ROOT, make_package


def _library(name: str) -> str:
    """Returns the path of a library of the compiler."""
    found = subprocess.run(
        ["c++", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        sys.exit(f"the compiler has no {name}: install its sanitizers")
    return str(Path(found).resolve())


def main() -> int:
    """Runs Python with the remaining arguments."""
    parser = argparse.ArgumentParser(description="Python under the address sanitizer")
    parser.add_argument("--build", required=True, type=Path)
    arguments, left = parser.parse_known_args()
    folder = arguments.build.resolve()
    environment = make_package(folder, folder / "python")
    environment["LD_PRELOAD"] = " ".join(map(_library, ("libasan.so", "libstdc++.so")))
    # Chosen: short enough for the output of a failed test.
    report = "malloc_context_size=6:print_legend=0"
    environment["ASAN_OPTIONS"] = f"detect_leaks=0:abort_on_error=1:{report}"
    environment["UBSAN_OPTIONS"] = "print_stacktrace=1:abort_on_error=1"
    command = [sys.executable, *left]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
