"""`bench`: real runs of two processes."""

import json
import re
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from jax_optireduce.__main__ import main

# Chosen: a run takes some 4 s, ten times that on a busy machine.
_PATIENCE_S = 100.0


def _run(arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jax_optireduce", *arguments.split()],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )


def _documented_fields() -> list[str]:
    """The fields of the file, in the order of the page."""
    page = (Path(__file__).parents[2] / "docs/figures.md").read_text()
    return re.findall(r"`(\w+)`", page.split("\n### The file\n")[1])


def _measure(
    arguments: str, cwd: Path
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Runs `bench`; returns the run, and the contents of its file."""
    ran = _run(f"bench --processes 2 {arguments} --json out.json", cwd)
    assert ran.returncode == 0, ran.stderr
    return ran, json.loads((cwd / "out.json").read_text())


def test_two_processes_measure_beside_xla_and_write_what_they_print(tmp_path):
    ran, content = _measure(
        "-b 4 -e 4K -f 32 -n 20 -w 2 --check --against xla",
        cwd=tmp_path,
    )
    assert content["schema"] == 1
    assert content["processes"] == len(content["hosts"]) == 2
    assert content["kinds"] == ["xla", "exact"]
    results = content["results"]
    assert list(content) + list(results[0]) == _documented_fields()
    assert [(r["bytes"], r["mode"]) for r in results] == [
        (size, kind) for size in (4, 128, 4096) for kind in ("xla", "exact")
    ]
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    # The plan; titles, units, two kinds of each size; the ratios between empty lines;
    # the load.
    assert len(lines) == 3 + (2 + 3 * 2) + (2 + 1 + 3 + 1) + 1, ran.stdout
    for xla, exact in zip(results[::2], results[1::2], strict=True):
        assert (xla["wrong"], exact["wrong"]) == (None, 0)
        assert exact["checked_calls"] == 5
        ratio = exact["p50_s"] / xla["p50_s"]
        assert exact["against_xla"]["p50"] == pytest.approx(ratio)
        for result in (xla, exact):
            assert [len(times) for times in result["seconds_by_rank"]] == [20, 20]
            assert 0 < result["p50_s"] <= result["p99_s"] <= result["p999_s"]
            assert result["p999_s"] == result["max_s"]
            assert result["cpu_s_per_gb"] > 0
    assert main(["plot", str(tmp_path / "out.json")]) == 0


def test_late_and_lost_data_is_reported_and_late_data_is_verified(tmp_path):
    _, content = _measure(
        "-b 64K -e 64K -n 10 --mode all -c 3 --loss 0.05 --deadline-s 0.05",
        cwd=tmp_path,
    )
    assert (content["deadline_s"], content["loss"]) == (0.05, 0.05)
    results = {result["mode"]: result for result in content["results"]}
    assert list(results) == ["exact", "agreed", "bounded", "lossy"]
    assert results["lossy"]["lost_share"] > 0
    assert results["lossy"]["deadline_hits"] > 0
    assert results["exact"]["late_share"] == results["exact"]["lost_share"] == 0
    for mode in ("exact", "agreed", "bounded"):
        assert (results[mode]["wrong"], results[mode]["checked_calls"]) == (0, 3)
    assert results["bounded"]["deadline_s"] == pytest.approx([0.05] * 10)


def test_a_late_rank_is_waited_for_by_the_others(tmp_path):
    _, content = _measure(
        "-b 4 -e 4 -n 5 -w 1 --mode exact --late-s 0.2",
        cwd=tmp_path,
    )
    assert content["late_s"] == 0.2
    # It sleeps for this long; half of that, in case another rank is late itself.
    assert statistics.median(content["results"][0]["seconds_by_rank"][0]) > 0.1


def test_a_wrong_sum_makes_the_exit_code_1(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            from jax_optireduce.__main__ import main
            from jax_optireduce.tools import bench_rank

            right = bench_rank.expected_sum

            def planted(row, ranks, call):
                sums = right(row, ranks, call)
                sums[7] += 1
                return sums

            bench_rank.expected_sum = planted
            sys.exit(main("bench -b 1K -e 1K -n 2 -w 0 -c 4".split()))
            """
        )
    )
    ran = _run("launch -n 2 program.py", cwd=tmp_path)
    assert ran.returncode == 1, ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if " exact " in line]
    assert line.split()[-1] == "8"  # One in each of 4 calls, on 2 ranks.
    assert "8 elements were wrong" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench", "--processes 4"),
        (
            "bench --processes 2 --json missing/out.json",
            "file in an existing folder",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_measured(
    tmp_path, arguments, message
):
    ran = _run(arguments, cwd=tmp_path)
    assert ran.returncode == 2
    assert message in ran.stderr
