"""The benchmark of machines that come and go, tiny."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

_RUN = {"ranks": 4, "steps": 100, "step_s": 0.1}


@pytest.fixture
def chaos(monkeypatch):
    """The module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import chaos

    return chaos


def test_participation_is_of_the_live_ranks_and_of_all_places(chaos, tmp_path):
    run = chaos.Run(scheme="bounded", faults_per_hour=1.0, seed=1, **_RUN)
    rows = [(98, 2.0, 0.0), (100, 4.0, 0.5)]
    text = "".join(
        json.dumps({"step": n, "s": float(n), "loss": 1, "live": live, "missing": part})
        + "\n"
        for n, live, part in rows
    )
    # A process may be killed while it writes.
    (tmp_path / "rank0.jsonl").write_text(text + '{"step": 10')
    (tmp_path / "end0").write_text('{"accuracy": 0.5}')
    (tmp_path / "rank0.log").write_text(
        "rank 1 back in step 9: this process waited 0.25 s"
    )
    figures = chaos._figures(run, tmp_path)
    expected = {
        "steps_made": 100,
        "seconds": 2.0,
        "of_live": 0.75,
        "of_places": 0.5,
        "loss": 1.0,
        "accuracy": 0.5,
        "waits": [0.25],
        "curve": [[0.0, 98.0, 0.5, 1.0], [2.0, 100.0, 0.5, 1.0]],
    }
    assert {name: figures[name] for name in expected} == expected


@pytest.mark.long
def test_training_goes_on_while_ranks_die_and_come_back(tmp_path):
    arguments = [f"--{k.replace('_', '-')}={x}" for k, x in _RUN.items()]
    ended = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "chaos.py", "--faults-per-hour=200"),
            *arguments,
            f"--output={tmp_path / 'output'}",
        ],
        # Each rank has one device.
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    table = (tmp_path / "output" / "table.md").read_text().splitlines()
    assert [row.split("|")[1].strip() for row in table[2:]] == [
        *("bounded", "bounded"),
        *("outer", "outer"),
        "gloo",
    ]
