"""The progress of the examples: its lines, its picture, and no wait for the device."""

import dataclasses
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import jax_optireduce

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import training_progress
from training_progress import Progress


def _stats(**values):
    names = [f.name for f in dataclasses.fields(jax_optireduce.CollectiveStats)]
    zeros = dict.fromkeys(names, jnp.float32(0))
    given = {name: jnp.float32(value) for name, value in values.items()}
    return jax_optireduce.CollectiveStats(**zeros | given)


def _clock(monkeypatch, step_s):
    """Sets a clock that only `advance` moves."""
    now = [100.0]
    monkeypatch.setattr(training_progress.time, "perf_counter", lambda: now[0])

    def advance():
        now[0] += step_s

    return advance


def test_lines_and_a_picture_without_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    advance = _clock(monkeypatch, 0.5)
    plot = tmp_path / "new folder" / "plot.png"
    late = _stats(missing_contributions=0.02, slowest_process=2)
    with Progress(
        130, first=100, unit="tokens", units_per_step=64, plot=plot
    ) as progress:
        for i in range(25):
            advance()
            progress.step(jnp.float32(5 - i / 10), late)
    assert progress.losses == pytest.approx([5 - i / 10 for i in range(25)])
    printed = capsys.readouterr().out
    start, first, *lines, summary, last = printed.splitlines()
    assert start == "step 100/130  compiling"
    assert first == "step 101/130  loss 5.000  late 1.00 %  slow rank 2"
    line = r"step (\d+)/130  loss (\S+)  step 500 ms  128 tokens/s  late 1.00 %  "
    found = [re.fullmatch(line + "slow rank 2", one) for one in lines]
    # Every five seconds, ten steps.
    assert [one and one.groups() for one in found] == [
        ("111", "4.000"),
        ("121", "3.000"),
    ]
    assert summary.startswith("25 steps in 12.5 s")
    assert summary.endswith("tokens/s; late 1.00 %")
    assert last == f"plot: {plot}"
    assert "\x1b" not in printed
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_terminal_of_80_columns_shows_every_field(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    advance = _clock(monkeypatch, 0.5)
    late = _stats(missing_contributions=0.02, slowest_process=2)
    with Progress(
        30_000, first=10_000, unit="examples", units_per_step=1e6
    ) as progress:
        for _ in range(25):
            advance()
            progress.step(jnp.float32(5), late)
    printed = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", capsys.readouterr().out)
    *_, bar, fields, summary, rest = printed.splitlines()
    assert re.fullmatch(r"step 10025/30000 .+ \d:\d\d:\d\d", bar.rpartition("\r")[2])
    assert fields == (
        "loss 5.000  step 500 ms  2,000,000 examples/s  late 1.00 %  slow rank 2"
    )
    # Words are whole.
    assert summary.endswith("P99 500 ms; 2,000,000 ")
    assert rest == "examples/s; late 1.00 %"


def test_only_process_0_shows_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    plot = tmp_path / "plot.png"
    with Progress(10, units_per_step=1, plot=plot) as progress:
        for _ in range(10):
            progress.step(jnp.float32(1))
    assert progress.losses == [1.0] * 10
    assert capsys.readouterr().out == ""
    assert not plot.exists()


def test_a_step_is_not_waited_for(capsys):
    # About a second of computation, which XLA makes on threads of its own.
    step = jax.jit(
        lambda x: jax.lax.fori_loop(0, 1000, lambda _, x: x @ x / 300, x).mean()
    )
    ones = jnp.ones((300, 300))
    step(ones).block_until_ready()
    with Progress(2, units_per_step=1) as progress:
        first = step(ones)
        progress.step(first)
        assert not first.is_ready()
        assert progress.losses == []
        # At most two steps are under way.
        progress.step(step(ones))
        assert progress.losses == [1]
    assert progress.losses == [1, 1]
    assert "step 2/2" in capsys.readouterr().out


def test_an_error_of_the_program_is_not_hidden(tmp_path):
    plot = tmp_path / "plot.png"

    def program():
        with Progress(3, units_per_step=1, plot=plot) as progress:
            progress.step(jnp.float32(1))
            progress.step(jnp.float32(1))
            raise RuntimeError("of the program")

    with pytest.raises(RuntimeError, match="of the program"):
        program()
    assert plot.exists()


def test_the_labels_of_the_picture_do_not_overlap():
    done = [
        training_progress._Step(4 / (i + 1), 0.01 * (i % 7 == 0), 12, 1000.0 * i)
        for i in range(300)
    ]
    figure = training_progress.picture(done, first=12_000)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = []
    for axes in figure.axes:
        texts = [axes.xaxis.label, axes.yaxis.label, axes.title, axes._left_title]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            ticks = axis.get_major_ticks()
            texts += [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]
        if legend := axes.get_legend():
            texts += legend.get_texts()
        shown = [text for text in texts if text.get_text() and text.get_visible()]
        boxes += [(t.get_text(), t.get_window_extent(renderer)) for t in shown]
    for i, (name, box) in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1, name
        for other, its in boxes[:i]:
            assert not box.overlaps(its), (name, other)
