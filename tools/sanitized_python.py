"""Runs Python with the extension modules built under the address sanitizer.

    python tools/sanitized_python.py --build build/asan-python -m pytest tests/ffi

The sanitizer's runtime has to be there before Python is: it is loaded in front of it,
with the library of C++ exceptions, which it looks for at once. What Python itself never
frees is not looked at.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from side_build import ROOT, build, make_package

_SANITIZERS = "address,undefined"


def _library(name: str) -> str:
    """Where the compiler has one of its own libraries."""
    found = subprocess.run(
        ["c++", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        sys.exit(f"the compiler has no {name}: install its sanitizers")
    return str(Path(found).resolve())


def main() -> int:
    """Builds, then runs Python with the arguments that are left."""
    parser = argparse.ArgumentParser(description="Python under the address sanitizer")
    parser.add_argument("--build", required=True, type=Path)
    arguments, left = parser.parse_known_args()
    folder = arguments.build.resolve()
    options = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    options += [f"-DOPTIREDUCE_SANITIZE={_SANITIZERS}"]
    build(ROOT / "ffi", folder, options, [])
    environment = make_package(folder, folder / "python")
    environment["LD_PRELOAD"] = " ".join(map(_library, ("libasan.so", "libstdc++.so")))
    environment["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=1"
    environment["UBSAN_OPTIONS"] = "print_stacktrace=1"
    command = [sys.executable, *left]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
