"""`python -m jax_optireduce plot`: draws the measurements of `bench --json`.

    python -m jax_optireduce bench --processes 4 --mode all --json out.json
    python -m jax_optireduce plot out.json -o out.png

The picture has three plots: the share of the calls of one size that took at
most a given time, with their deadlines; the bus bandwidth of every size; and
the time of each call of that size, in the order of the calls. The suffix
determines the format: .png, .svg or .pdf. Needs matplotlib: pip install
'jax_optireduce[plot]'.

Exit codes: 0, the picture is written; 1, matplotlib is missing; 2, usage error,
or a file that cannot be read or written.
"""

import argparse
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_optireduce._errors import OptiReduceError, UsageError
from jax_optireduce.tools import bench_figures, files
from jax_optireduce.tools.bench_rank import XLA

# An extra, which `run` requires.
_HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None

if TYPE_CHECKING or _HAS_MATPLOTLIB:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

# Source: Okabe and Ito, "Color Universal Design": distinct with any colour vision.
_COLOURS = {
    XLA: "#555555",
    "exact": "#0072B2",
    "agreed": "#CC79A7",
    "bounded": "#009E73",
    "lossy": "#D55E00",
}
_TITLES = {XLA: "lax.psum (Gloo)"}

_EXPECTED = "give a file that `bench --json` has written"
_FIELDS = {"processes", "hosts", "dtype", "iterations", "results"}
_RESULT_FIELDS = {"bytes", "mode", "busbw_gb_s", "seconds_by_rank", "deadline_s"}

# Size of the picture, in inches, and its resolution: 1,650 pixels wide.
_SIZE_INCHES = (11.0, 8.5)
_DOTS_PER_INCH = 150

# Labels of logarithmic axes. Chosen: 1, 2 and 5 of each decade do not overlap.
_DECADE = (1.0, 2.0, 5.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this verb to `parser`."""
    parser.add_argument(
        "file", type=Path, help="a file that `bench --json` has written"
    )
    parser.add_argument(
        *("-o", "--output"),
        type=Path,
        metavar="FILE",
        help="the picture (default: the same name, .png)",
    )
    parser.add_argument(
        "--size",
        metavar="SIZE",
        help="of the calls whose times are drawn, as in the table of bench (default: "
        "the largest)",
    )


def run(args: argparse.Namespace) -> int:
    """Draws the picture.

    Raises:
      UsageError: a file cannot be read or written.
      OptiReduceError: matplotlib is missing.
    """
    if not _HAS_MATPLOTLIB:
        raise OptiReduceError(
            "there is no matplotlib; pip install 'jax_optireduce[plot]'."
        )
    content = load(args.file)
    output = args.output or args.file.with_suffix(".png")
    figure = draw(content, _chosen_size(content, args.size))
    try:
        figure.savefig(output, dpi=_DOTS_PER_INCH)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(
            f"{output} cannot be written; give a name that ends with .png, .svg or "
            f".pdf. ({error})"
        ) from error
    print(f"{output} is written")
    return 0


def load(path: Path) -> dict[str, Any]:
    """Reads a file of `bench`.

    Raises:
      UsageError: it cannot be read, or is not a file of this version of `bench`.
    """
    text = files.read_text(path)
    try:
        content = files.parse_json(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON; {_EXPECTED}.") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != bench_figures.SCHEMA:
        raise UsageError(
            f"{path} has schema {schema!r}, expected {bench_figures.SCHEMA}; "
            f"{_EXPECTED} of this version."
        )
    results = content.get("results")
    if results == []:
        raise UsageError(f"{path} has no results; the run ended before the first.")
    found = results if isinstance(results, list) else [None]
    missing = _FIELDS - content.keys()
    for result in found:
        missing |= _RESULT_FIELDS - (result if isinstance(result, dict) else {}).keys()
    if missing:
        raise UsageError(f"{path} has no {', '.join(sorted(missing))}; {_EXPECTED}.")
    return content


def draw(content: Mapping[str, Any], size_bytes: int) -> "Figure":
    """Draws the picture.

    Args:
      content: the result of `load`.
      size_bytes: size of the calls whose times are drawn.

    Returns:
      A figure with three axes: shares of calls, bandwidths, times.
    """
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplot_mosaic([["share", "bandwidth"], ["times", "times"]])
    results = content["results"]
    of_size = [result for result in results if result["bytes"] == size_bytes]
    size = bench_figures.format_size(size_bytes)
    _draw_shares(axes["share"], of_size, size)
    _draw_bandwidths(axes["bandwidth"], results)
    _draw_times(axes["times"], of_size, size)
    for axis in axes.values():
        axis.grid(visible=True, color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    hosts = len({host["name"] for host in content["hosts"]})
    figure.suptitle(
        f"{content['processes']} processes on {hosts} host{'s' * (hosts > 1)}, "
        f"{content['dtype']}, {content['iterations']} calls of each kind and size",
        fontsize="medium",
    )
    handles, labels = axes["times"].get_legend_handles_labels()
    if any(s > 0 for result in of_size for s in result["deadline_s"]):
        handles.append(Line2D([], [], color="black", linestyle="--"))
        labels.append("deadline, in the same colour")
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        markerscale=3,
    )
    return figure


def _chosen_size(content: Mapping[str, Any], text: str | None) -> int:
    sizes = sorted({result["bytes"] for result in content["results"]})
    if text is None:
        return sizes[-1]
    names = {bench_figures.format_size(size): size for size in sizes}
    if text.upper() not in names:
        raise UsageError(
            f"--size must be one of {', '.join(names)}, which were measured, got "
            f"{text!r}."
        )
    return names[text.upper()]


def _milliseconds(result: Mapping[str, Any]) -> np.ndarray:
    """Returns the time of each call, over the ranks."""
    return 1e3 * np.max(result["seconds_by_rank"], axis=0)


def _draw_shares(axis: "Axes", results: Sequence[Mapping[str, Any]], size: str) -> None:
    for result in results:
        times = np.sort(_milliseconds(result))
        shares = 100 * np.arange(1, len(times) + 1) / len(times)
        colour = _COLOURS[result["mode"]]
        axis.step(times, shares, where="post", color=colour)
        deadline_s = [s for s in result["deadline_s"] if s > 0]
        if deadline_s:
            axis.axvline(1e3 * np.median(deadline_s), color=colour, linestyle="--")
    axis.set_title(f"Share of the calls of {size} bytes that took at most this long")
    deadlines = any(line.get_linestyle() == "--" for line in axis.get_lines())
    note = " (dashed: the median deadline)" if deadlines else ""
    axis.set_xlabel(f"time of a call, ms{note}")
    axis.set_ylabel("share of the calls, %")
    axis.set_ylim(0, 102)
    _logarithmic(axis.set_xscale, axis.xaxis)


def _draw_bandwidths(axis: "Axes", results: Sequence[Mapping[str, Any]]) -> None:
    for mode in dict.fromkeys(result["mode"] for result in results):
        own = [result for result in results if result["mode"] == mode]
        axis.plot(
            [result["bytes"] for result in own],
            [result["busbw_gb_s"] for result in own],
            color=_COLOURS[mode],
            marker="o",
            markersize=4,
        )
    axis.set_title("Bus bandwidth, from the median time")
    axis.set_xlabel("size, bytes")
    axis.set_ylabel("GB/s")
    axis.set_xscale("log", base=2)
    axis.set_xticks(_labelled(sorted({result["bytes"] for result in results})))
    axis.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: bench_figures.format_size(int(value)))
    )
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(bottom=0)


def _labelled(sizes: Sequence[int]) -> list[int]:
    """Returns those of ascending sizes that have a label, an eighth of the axis apart.

    Chosen: nine labels of at most seven characters fit below the plot.
    """
    ratio = (sizes[-1] / sizes[0]) ** (1 / 8)
    found = [sizes[0]]
    for size in sizes:
        if size > sizes[0] and size >= (1 - 1e-9) * ratio * found[-1]:
            found.append(size)
    return found


def _draw_times(axis: "Axes", results: Sequence[Mapping[str, Any]], size: str) -> None:
    for result in results:
        mode, times = result["mode"], _milliseconds(result)
        calls = np.arange(1, len(times) + 1)
        colour = _COLOURS[mode]
        axis.plot(
            calls,
            times,
            color=colour,
            linestyle="none",
            marker=".",
            markersize=4,
            label=_TITLES.get(mode, mode),
        )
        deadline_ms = 1e3 * np.array(result["deadline_s"])
        if (deadline_ms > 0).any():
            axis.plot(
                calls,
                np.where(deadline_ms > 0, deadline_ms, np.nan),
                color=colour,
                linestyle="--",
                linewidth=1,
            )
    axis.set_title(f"Time of each call of {size} bytes")
    axis.set_xlabel("number of the call")
    axis.set_ylabel("time, ms")
    _logarithmic(axis.set_yscale, axis.yaxis)


def _logarithmic(set_scale: Any, axis: Any) -> None:
    """Makes an axis logarithmic, with plain numbers beside it."""
    set_scale("log")
    axis.set_major_locator(LogLocator(subs=_DECADE))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
