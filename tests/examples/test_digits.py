"""The demonstration, short: two processes and a few steps with each transport."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMONSTRATION = Path(__file__).parents[2] / "examples" / "digits.py"

pytestmark = pytest.mark.long

STEPS = 30

# Seconds for all three runs. Chosen: five times their duration on two idle cores.
TIMEOUT_S = 240


def _demonstrate(*arguments, folder):
    return subprocess.run(
        [sys.executable, str(DEMONSTRATION), "--processes", "2", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "COLUMNS": "80",
            # Most of the time is that of the compiler.
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    """Its output, its figures, and its folder."""
    folder = tmp_path_factory.mktemp("demonstration")
    # A tenth of the datagrams, so that a few steps lose some for certain; a deadline
    # that only lost data misses.
    ended = _demonstrate(
        *("--steps", str(STEPS), "--drop", "0.1", "--deadline-s", "0.2"), folder=folder
    )
    output = folder / "demo-output"
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout, json.loads((output / "demo-summary.json").read_text()), output


def test_exact_trains_the_parameters_that_gloo_trains(demonstration):
    _, summary, _ = demonstration
    exact = summary["runs"]["exact"]
    assert summary["exact_equals_gloo"]
    assert exact["distance_to_gloo_early"] <= summary["tolerance"]
    assert exact["replica_distance"] == 0
    assert exact["missing_contributions"] == exact["missing_results"] == 0


def test_lossy_reports_what_it_lost(demonstration):
    _, summary, _ = demonstration
    lossy = summary["runs"]["lossy"]
    # Half of all contributions and results are a rank's own, which it never loses; and
    # the first 20 calls, which measure the duration of a whole one, lose no data.
    assert 0.01 < lossy["missing_contributions"] < 0.1
    assert 0.01 < lossy["missing_results"] < 0.1
    assert 0 < lossy["replica_distance"] < 0.1


def test_every_run_trains_and_is_timed(demonstration):
    _, summary, _ = demonstration
    for figures in summary["runs"].values():
        assert figures["parameters"] == 151_306
        assert len(figures["accuracy_by_rank"]) == 2
        # Untrained it is about 0.1.
        assert figures["curve"][0][1] < 0.3 < figures["curve"][-1][1]
        assert 0 < figures["step_seconds_p50"] <= figures["step_seconds_p99"]
        assert figures["seconds"] == pytest.approx(figures["curve"][-1][0])
    assert summary["settings"]["steps"] == STEPS
    assert summary["versions"]["jax"][0].isdigit()


def test_the_output_fits_a_plain_file(demonstration):
    printed, _, output = demonstration
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    for words in ("lax.pmean (Gloo): step 30/30", "held-out", "The same parameters"):
        assert words in printed
    picture = (output / "accuracy.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_a_failed_run_shows_why(tmp_path):
    ended = _demonstrate("--steps", "1", "--seed", "-1", folder=tmp_path)
    assert ended.returncode == 1
    assert "the run with gloo ended with exit code" in ended.stdout
    assert "InvalidParameterError" in ended.stdout
