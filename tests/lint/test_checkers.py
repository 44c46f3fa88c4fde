"""Types and formats, checked by the tools for them."""

import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT, files, relative


def _run(program: str, *arguments: str) -> None:
    """Runs a program of the environment that the tests run in."""
    path = Path(sys.executable).parent / program
    result = subprocess.run(
        [path, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_types_hold():
    _run("basedpyright", "--pythonpath", sys.executable)


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")], ids=" ".join)
def test_python_is_checked_and_formatted(arguments):
    _run("ruff", *arguments, ".")


def test_cxx_is_formatted():
    sources = [relative(path) for path in files(".h", ".cc")]
    _run("clang-format", "--dry-run", "-Werror", *sources)
