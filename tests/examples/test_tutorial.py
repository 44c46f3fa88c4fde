"""The tutorial and the first program of the README, as written, on real processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Seconds for one command; only a hang takes longer. Chosen: twenty times the
# duration on two idle cores.
TIMEOUT_S = 240


def _edited(program: str, diff: str) -> str:
    """Applies a block of the page: its lines begin with " ", "-" or "+"."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] != "+")
    after = "".join(line[1:] for line in lines if line[0] != "-")
    if not before:
        return program + after
    assert program.count(before) == 1, f"the program does not have once:\n{before}"
    return program.replace(before, after)


def _run(command: str, folder: Path) -> str:
    """Runs one command of the page in a shell, with this interpreter."""
    ended = subprocess.run(
        ["bash", "-c", f'python() {{ "{sys.executable}" -P "$@"; }}; {command}'],
        cwd=folder,
        # Most of the time is that of the compiler. The launcher adds the devices.
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def _shape(line: str) -> str:
    """Returns a line of output without its numbers, which no two runs share."""
    return re.sub(r"\d+(\.\d+)?", "0", line)


def _blocks(page: str) -> list[tuple[str, str]]:
    """Returns the language and the content of each block of a page."""
    found = r"^```(\w+)[^\n]*\n(.*?)^```"
    return re.findall(found, (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def test_the_first_program_of_the_readme_runs(tmp_path):
    (_, install), (_, program), (_, command), (_, shown), *_ = _blocks("README.md")
    (tmp_path / "train.py").write_text(program)
    lines = _run(command, tmp_path).splitlines()
    assert sorted(map(_shape, lines)) == sorted(map(_shape, shown.splitlines()))
    assert len({line.split()[-1] for line in lines}) == 1, "the ranks have other losses"
    assert "pip install ." in install


@pytest.mark.long
def test_the_tutorial_runs_as_it_is_written(tmp_path):
    program, ran_last, output, ran = "", "", "", 0
    for kind, block in _blocks("docs/tutorial.md"):
        if kind == "python":
            program = block
        elif kind == "diff":
            program = _edited(program, block)
        elif kind == "text":
            shapes = {_shape(line) for line in output.splitlines()}
            missing = {_shape(line) for line in block.splitlines()} - shapes
            assert not missing, f"{missing} not in\n{output}"
        elif "train.py" in block and program != ran_last:
            # A program is not run again in another environment.
            ran_last = program
            (tmp_path / "train.py").write_text(program)
            output = _run(block, tmp_path)
            ran += 1
            losses = re.findall(r"loss (\d+\.\d+|nan)", output)
            assert len(losses) == (15 if "launch" in block else 5)
            # A late loss of mode bounded joins a later one: a mean of none is nan.
            if 'pmean(loss, "data", mode="bounded")' not in program:
                assert all(0 < float(loss) < 1 for loss in losses)
    assert ran == 4
    norms = re.findall(r"norm of the parameters: (\S+)", output)
    assert len(norms) == 3
    assert len(set(norms)) == 1, "replicas differ at the end"


def test_a_block_that_does_not_fit_is_an_error():
    assert _edited("a\nb\n", "-a\n+c\n b\n") == "c\nb\n"
    assert _edited("a\n", "+b\n") == "a\nb\n"
    try:
        _edited("a\na\n", "-a\n")
    except AssertionError:
        return
    raise AssertionError("a block that fits twice was applied")
