"""The demonstration, short: two processes and a few steps with each transport."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DEMONSTRATION = Path(__file__).parents[2] / "examples" / "digits.py"

pytestmark = pytest.mark.long

STEPS = 30

# Seconds for all four runs. Chosen: five times their duration on two idle cores.
TIMEOUT_S = 240


def _demonstrate(*arguments, folder):
    return subprocess.run(
        [sys.executable, str(DEMONSTRATION), "--processes", "2", *arguments],
        cwd=folder,
        # Most of the time is that of the compiler.
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_four_transports_train_and_are_compared(tmp_path):
    # A tenth of the datagrams, so that a few steps lose some for certain; a deadline
    # that only lost data misses.
    ended = _demonstrate(
        *("--steps", str(STEPS), "--drop", "0.1", "--deadline-s", "0.2"),
        folder=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for words in ("step 30/30", "late or lost", "The first steps of exact equal"):
        assert words in ended.stdout
    output = tmp_path / "demo-output"
    assert (output / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    runs = {path.stem: np.load(path) for path in output.glob("*.npz")}
    assert set(runs) == {"gloo", "exact", "bounded", "lossy"}
    for figures in runs.values():
        assert figures["early"].size == 151_306
        # Untrained it is about 0.1.
        assert figures["curve"][0][1] < 0.3 < figures["curve"][-1][1]
        assert figures["seconds"].sum() == pytest.approx(figures["curve"][-1][0])
    assert not runs["exact"]["missing"].any()
    assert runs["exact"]["replica_distance"] == 0
    # Half of all contributions and results are a rank's own, which it never loses; and
    # the first 20 calls, which measure the duration of a whole one, lose no data.
    assert all(0.01 < share < 0.1 for share in runs["lossy"]["missing"])
    assert 0 < runs["lossy"]["replica_distance"] < 0.1


def test_a_failed_run_shows_why(tmp_path):
    ended = _demonstrate("--steps", "1", "--seed", "-1", folder=tmp_path)
    assert ended.returncode == 1
    assert "exit code 1" in ended.stdout
    assert "ValueError" in ended.stdout
