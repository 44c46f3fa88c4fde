"""The accuracy benchmark, tiny: it resumes, and its tables match the training."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"

# Seconds for two runs. Chosen: five times their duration on two idle cores.
TIMEOUT_S = 120

SMALL = ("--steps", "3", "--seeds", "1", "--processes", "2", "--conditions", "0")


def _run(*arguments, folder):
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *SMALL, *arguments],
        cwd=folder,
        # Most of the time is that of the compiler.
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two schemes of one task, and a page with their tables."""
    folder = tmp_path_factory.mktemp("accuracy")
    page = folder / "page.md"
    page.write_text("before\n<!-- accuracy: begin -->\nold\n<!-- accuracy: end -->\n")
    some = ("--tasks", "text", "--optimizers", "sgd", "--schemes", "exact", "bounded")
    ended = _run(*some, "--page", "page.md", folder=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 cells, 0 of them done" in ended.stdout
    again = _run(*some, folder=folder)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "2 cells, 2 of them done" in again.stdout
    assert "ms a step;" not in again.stdout
    return folder


def _results(folder):
    lines = (folder / "accuracy-output/results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_cell_reports_what_each_rank_holds(folder):
    exact, bounded = _results(folder)
    assert (exact["scheme"], bounded["scheme"]) == ("exact", "bounded")
    for row in (exact, bounded):
        assert len(row["accuracy_by_rank"]) == len(row["loss_by_rank"]) == 2
        assert row["parameters"] == 96_016
        assert 0 < row["step_ms_p50"] <= row["step_ms_p99"]
    assert exact["drift"] == exact["missing_results"] == exact["deferred"] == 0
    # The first calls wait, or had time enough: no data is late.
    if bounded["missing_contributions"] == bounded["missing_results"] == 0:
        assert bounded["accuracy_by_rank"] == exact["accuracy_by_rank"]


def test_tables_stand_between_the_marks_of_the_page(folder):
    page = (folder / "page.md").read_text()
    tables = (folder / "accuracy-output/tables.md").read_text()
    assert page.startswith("before\n<!-- accuracy: begin -->\n")
    assert page.endswith("<!-- accuracy: end -->\n")
    assert "old" not in page
    assert tables in page
    assert "### Text: a character transformer of 96,016 parameters, SGD" in tables
    assert "over 1 seed(s)" in tables
    assert "| clean | `exact` |" in tables
    assert "| clean | `bounded` |" in tables


def test_page_without_marks_is_an_error(folder):
    (folder / "other.md").write_text("nothing\n")
    some = ("--tasks", "text", "--optimizers", "sgd", "--schemes", "exact")
    ended = _run(*some, "--page", "other.md", folder=folder)
    assert ended.returncode == 1
    assert "must have a line <!-- accuracy: begin -->" in ended.stderr
