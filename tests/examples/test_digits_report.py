"""The table, the sentences and the picture of the demonstration, from any figures."""

import contextlib
import io
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import digits_report
import machine_load


def _run(seconds=8.0, accuracy=0.98, missing=(0.0, 0.0), deadline_s=0.0):
    return {
        "curve": [(seconds * i / 30, accuracy * i / 30) for i in range(31)],
        "accuracy_by_rank": [accuracy, accuracy],
        "early_step": 10,
        "taken_by_others": 0.0,
        "seconds": seconds,
        "step_seconds_p50": seconds / 300,
        "step_seconds_p99": seconds / 100,
        "missing_contributions": missing[0],
        "missing_results": missing[1],
        "deadline_s": deadline_s,
        "replica_distance": missing[0],
        "distance_to_gloo_early": 1e-8,
        "distance_to_gloo_final": missing[0],
    }


def _summary(runs, *, taken=0.0, drop=0.02, deadline_s=0.0):
    return {
        "exact_equals_gloo": True,
        "tolerance": 1e-4,
        "taken_by_others": taken,
        "settings": {"processes": 4, "drop": drop, "deadline_s": deadline_s},
        "runs": dict(zip(digits_report.TITLES, runs, strict=True)),
    }


def _shown(summary) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        digits_report.show(summary, Path("demo-output"), Console(width=80))
    return printed.getvalue()


_RUNS = st.builds(
    _run,
    seconds=st.floats(0.01, 9999),
    accuracy=st.floats(0, 1),
    missing=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    deadline_s=st.floats(0.001, 1),
)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(
    runs=st.lists(_RUNS, min_size=4, max_size=4),
    taken=st.none() | st.floats(0, 1),
    drop=st.floats(0, 0.999),
)
def test_table_sentences_and_picture_have_the_same_figures(runs, taken, drop):
    summary = _summary(runs, taken=taken, drop=drop)
    shown = _shown(summary)
    assert max(map(len, shown.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    text = " ".join(shown.split())
    for transport, title in digits_report.TITLES.items():
        label = digits_report.label(transport, summary)
        name, share, duration = re.fullmatch(
            r"(.*): ([\d.]+ %) after ([\d.]+ m?s)", label
        ).groups()
        assert f"{title.split()[-1]} {share} {duration} " in text
        for dropped in re.findall(r", ([\d.]+ %) dropped", name):
            assert f"{dropped} of the datagrams were dropped" in text
    for mode in ("bounded", "lossy"):
        cells = re.search(rf" {mode}(?: \S+ (?:%|m?s)){{4}} (\S+ %|-) (\S+ %|-) ", text)
        assert cells is not None
        for cell, part in zip(
            cells.groups(), ("contributions", "results"), strict=True
        ):
            if cell != "-":
                assert f"{cell} of the {part}" in text


@pytest.mark.parametrize(
    ("taken", "line"),
    [
        (0.0, None),
        (0.099, None),
        (0.35, "too busy for figures: other programs took 35.0 % of"),
        (None, "The load of this machine is unknown"),
    ],
)
def test_a_busy_machine_is_named_above_the_table_and_in_the_picture(taken, line):
    summary = _summary([_run()] * 4, taken=taken)
    text = " ".join(_shown(summary).split())
    if line is None:
        assert "figures" not in text
    else:
        assert text.index(line) < text.index("through")
    label = digits_report.picture(summary).axes[0].get_xlabel()
    assert ("busy" in label) == digits_report.is_busy(summary)


def test_the_load_of_the_busiest_run_counts_and_an_unknown_one_is_unknown():
    assert digits_report._most([0.1, 0.3, 0.0]) == 0.3
    assert digits_report._most([0.1, None]) is None


@pytest.mark.parametrize(
    "runs",
    [
        [_run()] * 4,
        [_run(seconds=s) for s in (1000.0, 3.0, 2.0, 1.0)],
        [_run(seconds=0.02, accuracy=a) for a in (0.0, 0.1, 0.5, 1.0)],
        [_run(accuracy=1.0)] * 4,
    ],
)
def test_no_label_of_the_picture_covers_another_or_a_line(runs):
    figure = digits_report.picture(_summary(runs, taken=0.5, drop=0.125))
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    (axes,) = figure.axes
    texts = [axes.xaxis.label, axes.yaxis.label, axes._left_title]
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        ticks = axis.get_major_ticks()
        texts += [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]
    (legend,) = figure.legends
    texts += legend.get_texts()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
    for name, box in boxes:
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1, name
        assert not box.overlaps(axes.bbox), name
    for (name, box), (other, its) in itertools.combinations(boxes, 2):
        assert not box.overlaps(its), (name, other)
    # Every end is inside the axes.
    for line in axes.get_lines():
        assert axes.get_ylim()[0] <= line.get_ydata()[-1] <= axes.get_ylim()[1]


@hypothesis.given(st.floats(0.1, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
@hypothesis.example(own=110761.0, waited=2.225073858507e-311, busy=110762.0)
def test_others_take_no_more_than_they_used_or_than_the_ranks_waited(own, waited, busy):
    share = machine_load.share_taken(own, waited, busy)
    taken = share * own / (1 - share)
    assert 0 <= share < 1
    # Seconds below a nanosecond are rounding.
    assert taken <= waited * (1 + 1e-9) + 1e-9
    assert taken <= max(busy - own, 0) * (1 + 1e-9) + 1e-9


def test_programs_on_the_same_cores_are_measured():
    others = machine_load.Load()
    spinning = [sys.executable, "-c", "while True: pass"]
    cores = len(os.sched_getaffinity(0))
    programs = [subprocess.Popen(spinning) for _ in range(3 * cores)]
    try:
        time.sleep(0.5)
        end_s = time.process_time() + 0.2
        while time.process_time() < end_s:
            pass
    finally:
        for program in programs:
            program.kill()
            program.wait()
    share = others.since_start()
    # Four programs share a core; the kernel of a sandbox may not count.
    assert share is None or share > machine_load.BUSY_SHARE
    assert share is not None or not np.isfinite(machine_load._times()).all()
