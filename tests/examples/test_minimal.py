"""The short examples train to the right weights, in two processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Seconds for one example; only a hang takes longer. Chosen: twenty times the
# duration on two idle cores.
TIMEOUT_S = 240


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("minimal_shard_map", 4),
        ("minimal_pmap", 2),
        pytest.param("minimal_optax", 2, marks=pytest.mark.long),
        ("minimal_zero", 2),
    ],
)
def test_minimal_example_learns(name, lines, tmp_path):
    launch = [sys.executable, "-P", "-m", "jax_optireduce", "launch", "-n", "2"]
    ended = subprocess.run(
        [*launch, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        # The launcher sets the number of devices of each process.
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    errors = re.findall(r"(?m)^\[\d\] .* weights are off by (\S+)$", ended.stdout)
    assert len(errors) == lines, ended.stdout
    assert all(float(error) < 1e-4 for error in errors), ended.stdout


@pytest.mark.parametrize("path", [*EXAMPLES.glob("minimal_*.py")], ids=lambda p: p.name)
def test_minimal_example_is_minimal(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 40
    # The differences from a program with lax.pmean are marked.
    for number in (1, 2, 3):
        marked = [line for line in lines if line.endswith(f"  # {number}")]
        assert marked
        assert all("jax_optireduce" in line for line in marked)
