"""`plot`: its axes, and its errors about files that do not match."""

import itertools
import json

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from jax_optireduce.__main__ import main
from jax_optireduce.tools import plot

_MODES = ("xla", "exact", "bounded")
_SIZES = (4096, 1 << 20)


def _result(mode, size_bytes):
    rng = np.random.default_rng(size_bytes)
    return {
        "bytes": size_bytes,
        "mode": mode,
        "busbw_gb_s": size_bytes / 1e6,
        "seconds_by_rank": rng.uniform(1e-3, 5e-2, (2, 50)).tolist(),
        "deadline_s": [0.04 * (mode == "bounded")] * 50,
    }


@pytest.fixture
def content():
    return {
        "schema": 1,
        "version": "0.1.0",
        "processes": 2,
        "dtype": "float32",
        "iterations": 50,
        "hosts": [{"name": "a"}, {"name": "a"}],
        "results": [_result(mode, size) for size in _SIZES for mode in _MODES],
    }


@pytest.fixture
def path(content, tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    return path


def test_axes_have_units_and_a_line_for_each_kind(content):
    figure = plot.draw(content, 1 << 20)
    share, bandwidth, times = figure.axes
    assert share.get_xlabel().startswith("time of a call, ms")
    assert share.get_ylabel() == "share of the calls, %"
    assert (bandwidth.get_xlabel(), bandwidth.get_ylabel()) == ("size, bytes", "GB/s")
    assert times.get_xlabel() == "number of the call"
    assert times.get_ylabel() == "time, ms"
    # The deadline of "bounded" is one more line.
    assert [len(axis.get_lines()) for axis in (share, bandwidth, times)] == [4, 3, 4]


def test_shares_rise_to_all_calls_and_the_deadline_is_marked(content):
    share = plot.draw(content, 1 << 20).axes[0]
    *curves, last = share.get_lines()
    for curve in curves:
        assert np.all(np.diff(curve.get_xdata()) >= 0)
        assert curve.get_ydata()[-1] == 100
    assert set(last.get_xdata()) == {40.0}
    assert last.get_linestyle() == "--"


def test_the_time_of_a_call_is_that_of_the_slowest_rank(content):
    times = plot.draw(content, 4096).axes[2].get_lines()[0]
    slowest = 1e3 * np.max(content["results"][0]["seconds_by_rank"], axis=0)
    np.testing.assert_allclose(times.get_ydata(), slowest)


def test_bandwidths_are_drawn_over_the_sizes(content):
    for curve in plot.draw(content, 4096).axes[1].get_lines():
        assert tuple(curve.get_xdata()) == _SIZES


@pytest.mark.parametrize(
    "sizes",
    [
        [3 << 20],
        [1 << i for i in range(10, 27)],
        [(1 << 20) * i + 52_429 for i in range(1, 65)],
        [(1 << 20) + 4 * i for i in range(100)],
    ],
)
def test_labels_of_sizes_do_not_overlap(content, sizes):
    content["results"] = [_result("exact", size) for size in sizes]
    figure = plot.draw(content, sizes[-1])
    figure.draw(renderer := FigureCanvasAgg(figure).get_renderer())
    ticks = figure.axes[1].xaxis.get_major_ticks()
    boxes = [tick.label1.get_window_extent(renderer) for tick in ticks]
    assert 1 <= len(boxes) <= 9
    for left, right in itertools.pairwise(boxes):
        assert left.x1 < right.x0


def test_one_legend_outside_the_axes_names_every_kind_and_the_deadline(content):
    figure = plot.draw(content, 1 << 20)
    assert all(axis.get_legend() is None for axis in figure.axes)
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [
        "lax.psum (Gloo)",
        "exact",
        "bounded",
        "deadline, in the same colour",
    ]


def test_the_picture_is_written_beside_the_file(path, capsys):
    assert main(["plot", str(path), "--size", "4k"]) == 0
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "bench.png is written" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_the_suffix_chooses_the_format(path, tmp_path, suffix):
    output = tmp_path / f"picture{suffix}"
    assert main(["plot", str(path), "-o", str(output)]) == 0
    assert output.stat().st_size > 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "has schema 2, expected 1"),
        ({"results": []}, "has no results"),
        ({"results": None}, "has no busbw_gb_s, bytes, deadline_s, mode"),
        ({"results": [1]}, "has no busbw_gb_s, bytes, deadline_s, mode"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(content, path, capsys, change, message):
    path.write_text(json.dumps(content | change))
    assert main(["plot", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_mistakes_are_answered_with_what_would_work(path, tmp_path, capsys):
    assert main(["plot", str(tmp_path / "missing.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["plot", str(path), "--size", "7M"]) == 2
    assert "--size must be one of 4K, 1M" in capsys.readouterr().err
    assert main(["plot", str(path), "-o", str(tmp_path / "picture.xyz")]) == 2
    assert "picture.xyz cannot be written" in capsys.readouterr().err


def test_without_matplotlib_the_command_that_brings_it_is_named(
    path, capsys, monkeypatch
):
    monkeypatch.setattr(plot, "_HAS_MATPLOTLIB", False)
    assert main(["plot", str(path)]) == 1
    assert "pip install 'jax_optireduce[plot]'" in capsys.readouterr().err
