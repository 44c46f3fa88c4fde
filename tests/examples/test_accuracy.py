"""The accuracy benchmark, tiny: it resumes, and its tables match the training."""

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"

# Seconds for one run. Chosen: seven times its duration on two idle cores.
TIMEOUT_S = 240


@pytest.fixture
def benchmark(monkeypatch):
    """The module."""
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    import accuracy

    return accuracy


SMALL = ("--steps", "3", "--seeds", "1", "--processes", "2", "--lost-percent", "0")


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
    """A folder with the results of some schemes of one task."""
    folder = tmp_path_factory.mktemp("accuracy")
    schemes = ("exact", "bounded", "bounded, ACCO", "50 % late")
    some = ("--tasks", "text", "--optimizers", "sgd", "--schemes", *schemes)
    ended = _run(*some, folder=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 cells, 0 of them done" in ended.stdout
    again = _run(*some, folder=folder)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "4 cells, 4 of them done" in again.stdout
    assert "ms a step;" not in again.stdout
    return folder


def _results(folder):
    lines = (folder / "accuracy-output/results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.long
def test_every_cell_reports_what_each_rank_holds(folder):
    exact, bounded, acco, late = rows = _results(folder)
    names = [row["scheme"] for row in rows]
    assert names == ["exact", "bounded", "bounded, ACCO", "50 % late"]
    for row in rows:
        assert len(row["accuracy_by_rank"]) == len(row["loss_by_rank"]) == 2
        assert row["parameters"] == 96_016
        assert 0 < row["step_ms_p50"] <= row["step_ms_p99"]
    assert exact["drift"] == exact["missing_results"] == exact["deferred"] == 0
    # The first calls wait, or had time enough: no data is late.
    if bounded["missing_contributions"] == bounded["missing_results"] == 0:
        assert bounded["accuracy_by_rank"] == exact["accuracy_by_rank"]
    # Both see equal examples, half of them at estimated parameters.
    losses = [row["loss_by_rank"][0] for row in (exact, acco)]
    assert losses[0] != losses[1] == pytest.approx(losses[0], abs=0.1)
    # Half of a gradient is one step late, on all ranks alike.
    assert late["drift"] == 0
    assert late["accuracy_by_rank"] != exact["accuracy_by_rank"]


@pytest.mark.long
def test_tables_have_every_scheme(folder):
    tables = (folder / "accuracy-output/tables.md").read_text()
    assert "3 steps, 1 seed(s)" in tables
    schemes = ("`exact`", "`bounded`", "`bounded`, ACCO", "50 % late")
    assert f"| training | {' | '.join(schemes)} |" in tables
    assert "| text, SGD |" in tables
    for scheme in schemes[:-1]:
        assert f"| {scheme} | no loss |" in tables


@pytest.mark.usefixtures("benchmark")
def test_published_tables_are_those_of_their_results():
    published = BENCHMARK.parent / "published" / "accuracy.jsonl"
    rows = [json.loads(line) for line in published.read_text().splitlines()]
    page = (BENCHMARK.parents[1] / "docs" / "figures.md").read_text()
    for line in sys.modules["accuracy_report"].tables(rows).splitlines():
        assert line in page or not line.startswith("|"), line


@pytest.mark.usefixtures("benchmark")
def test_a_step_of_acco_has_halves_of_two_batches():
    train = sys.modules["accuracy_train"]
    task = train.accuracy_models.load("text")
    half = task.batch_per_rank // 2

    def labels(scheme):
        batches = train.batches_of(task, train.SCHEMES[scheme], 1)
        return [rows[1] for rows in itertools.islice(batches, 4)]

    plain, acco = labels("exact"), labels("exact, ACCO")
    # The first batch is that of the start, of which ACCO takes a half.
    np.testing.assert_array_equal(plain[0], plain[1])
    np.testing.assert_array_equal(acco[0], plain[0])
    halves = np.concatenate([acco[0][:half], *acco[1:]])
    wanted = np.concatenate(plain[1:])
    np.testing.assert_array_equal(halves[: len(wanted)], wanted)


def test_the_network_cannot_change_a_training_in_exact(benchmark):
    arguments = argparse.Namespace(
        tasks=["text"],
        optimizers=["sgd"],
        schemes=["exact", "exact, ACCO", "bounded, ACCO"],
        lost_percent=[0, 5],
        seeds=3,
        steps=1,
    )
    found = [(cell.scheme, cell.lost_percent) for cell in benchmark.cells(arguments)]
    kinds = itertools.product(arguments.schemes, arguments.lost_percent)
    assert [found.count(kind) for kind in kinds] == [3, 1, 3, 0, 3, 3]
