"""The figures and tables of the benchmark of the time to a target accuracy."""

import json
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    """The modules `tta`, `tta_report` and `tta_train`."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import tta
    import tta_report
    import tta_train

    return tta, tta_report, tta_train


def _row(scheme, reached_s, *, seed=0, **fields):
    row = {"task": "fashion", "optimizer": "sgd", "impairment": "quiet", "seed": seed}
    row |= {"scheme": scheme, "reached_s": reached_s, "reached_steps": 20}
    row |= dict.fromkeys(("missing_contributions", "missing_results", "deferred"), 0.0)
    row |= {"step_ms": 100.0, "step_ms_p50": 90.0, "step_ms_p99": 200.0, "drift": 0.0}
    row |= {"deadline_ms": 50.0, "skipped": 0.0, "late_step_ms": 80.0}
    row |= {"mbps": 250, "loss": 0.2, "step_bytes": 9e5, "ranks": 4, "steps": 150}
    row |= {"compute_ms": 30.0}
    row |= {"accuracy": 0.95, "curve_s": [1.0, 2.0], "curve": [0.5, 0.95]}
    return row | fields


def test_target_is_reached_at_the_end_of_the_first_step_known_to_be_above_it(modules):
    _, report, _ = modules
    ends_s = np.arange(1, 21) / 10
    noted = np.array([5, 10, 15, 20])
    accuracies = [0.1, 0.8, 0.95, 0.7]
    assert report.reached(noted, accuracies, ends_s, 0.8) == (1.0, 10)
    assert report.reached(noted, accuracies, ends_s, 0.9) == (1.5, 15)
    assert report.reached(noted, accuracies, ends_s, 0.99) is None


def test_a_training_that_fails_over_gloo_has_the_times_of_the_other_schemes(modules):
    _, report, _ = modules
    failed = {"task": "fashion", "optimizer": "sgd", "impairment": "killed", "seed": 0}
    failed |= {"scheme": "Gloo, one array", "ended": 0, "mbps": 250, "ranks": 4}
    assert report.line(failed).endswith("no rank has ended")
    rows = [failed, _row("bounded", 6.5, impairment="killed")]
    tables = report.tables(rows, {"killed": "one dies"})
    line = "| `killed`: one dies | 1 | 1 of 1 fail | 6.5, 100, 200 | 0.0 % | 95.0 |"
    assert line in tables


def test_other_schemes_have_a_table_of_their_own(modules):
    _, report, _ = modules
    rows = [_row("Gloo, one array", 4.0), _row("exact", 3.0), _row("lossy", 2.0)]
    tables = report.tables(rows, {"quiet": "none"})
    assert "| `quiet`: none | 1 | 4.0, 100, 200 | 0.75, 1.00, 1.00 |" in tables
    assert "| impairment | seeds | `lossy` |" in tables
    assert "| `quiet` | 1 | 0.50, 95.0 % |" in tables


def test_runs_at_several_rates_have_a_table_and_a_curve_of_each_scheme(
    modules, tmp_path
):
    _, report, _ = modules
    rows = [
        _row(scheme, 1.0, mbps=mbps, late_step_ms=800 / mbps)
        for scheme in ("Gloo", "bounded")
        for mbps in (10, 100)
    ]
    report.draw_rates(rows, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    fast = {"mbps": 1000, "compute_ms": 0.0, "steps": 450}
    rows += [_row("bounded", 1.0, loss=loss, **fast) for loss in (1.5, 1.7)]
    table = report.tables(rows, {"quiet": "none"})
    assert "| ms at 10 Mbit/s | ms at 100 Mbit/s |" in table
    assert "| loss after 450 steps |" in table
    assert "| `Gloo` | 80 | 8 | 900 |  |" in table
    assert "| `bounded` | 80 | 8 | 900 | 1.600 ± 0.100 |" in table


def test_pauses_come_from_the_seed_for_each_rank_or_for_several_at_once(modules):
    _, _, train = modules
    alone = train.Pauses(0.1, 500)
    drawn = np.stack([alone.drawn(1, rank, 4, 2000) for rank in range(4)])
    assert set(np.unique(drawn)) == {0, 0.5}
    assert 0.07 < (drawn > 0).mean() < 0.13
    np.testing.assert_array_equal(drawn[0], alone.drawn(1, 0, 4, 2000))
    assert (drawn[0] != drawn[1]).any()
    two = train.Pauses(0.1, 500, ranks=2)
    together = np.stack([two.drawn(1, rank, 4, 2000) for rank in range(4)]) > 0
    assert set(np.unique(together.sum(axis=0))) == {0, 2}


def test_every_impairment_gives_the_ranks_a_plan(modules):
    tta, _, _ = modules
    for impairment in tta.IMPAIRMENTS:
        cell = tta.Cell("text", "sgd", "exact", impairment, 0, 30, 5.0, 250, "cubic", 4)
        plan = json.loads(json.dumps(cell.plan()))
        assert (plan["killed_after"] == 10) == (impairment == "killed")
        assert cell.link(10).mbps == 250


def test_a_mean_of_many_seeds_leaves_out_the_extremes_and_has_an_interval(modules):
    _, report, _ = modules
    assert report.trimmed([1.0, 2.0, 6.0]) == "3.00"
    # Without 0 and 90: mean 2, standard error 1 / sqrt(3), and Student's t is 4.303.
    assert report.trimmed([1.0, 0.0, 2.0, 90.0, 3.0]) == "2.00 ± 2.48"


def test_ratios_are_those_of_runs_with_the_same_seed(modules):
    _, report, _ = modules
    gloo = [_row("Gloo, one array", 4.0), _row("Gloo, one array", 8.0, seed=1)]
    ours = [_row("bounded", 2.0), _row("bounded", 6.0, seed=1, step_ms=50.0)]
    failed = {"task": "fashion", "optimizer": "sgd", "impairment": "quiet", "seed": 0}
    failed |= {"scheme": "exact", "ended": 0, "mbps": 250, "ranks": 4}
    tables = report.tables([*gloo, *ours, failed], {"quiet": "none"})
    assert "### fashion, sgd, 4 ranks, 250 Mbit/s" in tables
    line = "| `quiet`: none | 2 | 6.0, 100, 200 | 1 of 1 fail | 0.62, 0.75, 1.00 |"
    assert f"{line} 0.0 % | 95.0 (95.0) |" in tables


def test_first_screen_has_the_times_to_the_target(modules):
    _, report, _ = modules
    rows = [
        _row(scheme, reached_s, task="text")
        for scheme, reached_s in (("Gloo, one array", 4.0), ("bounded", 3.0))
    ]
    table = report.first_screen(rows, {"quiet": "none"})
    assert table.endswith("| none | 4.0 |  | 0.75 |  |")


def test_a_run_that_misses_the_target_has_no_time(modules):
    _, report, _ = modules
    rows = [_row("Gloo, one array", 4.0), _row("bounded", None)]
    assert "| never, 1.00, 1.00 |" in report.tables(rows, {"quiet": "none"})


def test_each_scheme_has_the_ratio_of_its_times_in_a_long_and_a_short_tail(modules):
    _, report, _ = modules
    rows = [
        _row(scheme, reached_s, impairment=impairment)
        for impairment, times in (("tail1.5", (4.0, 2.0)), ("tail3", (8.0, 2.2)))
        for scheme, reached_s in zip(("Gloo, one array", "exact"), times, strict=True)
    ]
    tables = report.tables(rows, dict.fromkeys(report.TAILS, "bursts"))
    assert "| 1 | 2.00 | 1.10 |" in tables
    without = report.tables([_row("exact", 1.0)], {"quiet": "none"})
    assert " / `tail1.5`" not in without


def test_published_tables_are_those_of_the_raw_results(modules):
    tta, report, _ = modules
    for name, made, page in (
        ("tta", report.tables, "docs/figures.md"),
        ("tta", report.first_screen, "README.md"),
        ("adamw-150", report.tables, "docs/figures.md"),
        ("minilm", report.tables, "docs/figures.md"),
        ("slow-links", report.tables, "docs/figures.md"),
    ):
        path = f"benchmarks/published/{name}.jsonl"
        lines = (BENCHMARKS.parent / path).read_text().splitlines()
        tables = made([json.loads(line) for line in lines], tta.TITLES)
        published = (BENCHMARKS.parent / page).read_text().splitlines()
        wanted = [line for line in tables.splitlines() if line.startswith("|")]
        assert len(wanted) > 2
        missing = [line for line in wanted if line not in published]
        command = f"benchmarks/tta.py --report {path}"
        assert not missing, f"{page}: copy the tables of `{command}`"


def test_steps_that_a_rank_has_missed_have_the_end_of_the_next_one(modules):
    tta, _, _ = modules
    cell = tta.Cell("text", "sgd", "bounded", "pauses", 0, 4, 5.0, 250, "cubic", 4)
    common = {"noted": np.array([2, 4]), "accuracies": np.array([0.1, 0.3])}
    common |= {"loss": 1.0, "parameters": np.ones(3), "sent_bytes": 400.0}
    ends_s = {"all": np.array([1.0, 2.0, 3.0, 4.0]), "two": np.array([3.0, 3, 3, 4])}
    made = {"all": np.array([1, 2, 3, 4]), "two": np.array([3, 4])}
    ranks = [
        {"ends_s": ends_s[name], "made": made[name], "reports": reports, **common}
        for name, reports in (("all", np.zeros((4, 6))), ("two", np.ones((2, 6))))
    ]
    found = tta.figures(cell, ranks)
    assert found["step_ms"] == found["step_ms_p50"] == 1000
    assert found["late_step_ms"] == 750
    assert found["step_ms_p99"] > 2800
    assert (found["reached_s"], found["reached_steps"]) == (4.0, 4)
    assert found["skipped"] == pytest.approx(2 / 6)
