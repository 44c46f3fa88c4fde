"""The figures and the table of the benchmark of lateness."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# A call with half of its contributions late, and with deferred data of earlier calls.
REPORT = [0.1, 0.1, 0.5, 0.0, 0.25, 3.0, 4.0]


@pytest.fixture
def lateness(monkeypatch):
    """The module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import lateness

    return lateness


def _rank(calls):
    return {
        "began": [float(call) for call in range(calls)],
        "seconds": [0.05] * calls,
        "reports": [REPORT] * calls,
        "error": "",
        "cpu_s": 1.0,
        "given": 2 * calls,
        "received": [8.0 * calls] * 2,
        "log": ["rank 3 is slow: its data came last."],
    }


def test_table_has_a_line_for_each_row_with_the_shares_of_late_data(lateness):
    cell = lateness.Cell("slow", deadline_s=0.1, mebibytes=1, calls=60)
    run = lateness.Run({}, [_rank(60) for _ in range(lateness.RANKS)], [0.001])
    report = lateness.summary(cell, run)
    assert not lateness.failed(report)
    *_, healthy, itself = lateness.show([report]).splitlines()
    assert healthy.startswith("| slow, 1 MiB | 0.100 | 90 |")
    assert itself.startswith("| slow itself, 1 MiB | 0.100 | 30 |")
    assert "| 50.0 % | 0.0 % | 25.0 % | 3 by 3 of 3 | 100 % | 0 |" in healthy
