"""The output of `digits.py`: a table, a plot, and the figures as JSON."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

# The runs, in order, and their names on the screen.
TITLES = {
    "gloo": "lax.pmean (Gloo)",
    "exact": "optireduce exact",
    "bounded": "optireduce bounded",
    "lossy": "optireduce lossy",
}

# Source: Okabe and Ito, "Color Universal Design": distinct with any colour vision.
COLOURS = {
    "gloo": "#555555",
    "exact": "#0072B2",
    "bounded": "#009E73",
    "lossy": "#D55E00",
}
DASHES: dict[str, Any] = {
    "gloo": (0, (1, 1)),
    "exact": "-",
    "bounded": (0, (3, 1, 1, 1)),
    "lossy": (0, (5, 2)),
}

# Largest relative distance, after the first few steps, between the parameters of two
# runs that differ only in the order of additions. The distance at the end is shown but
# not judged: training amplifies rounding, by jumps, to 7e-5, 2e-4 and 3e-3 after 300
# steps with three seeds, although every single sum was right to the last bit. Chosen:
# above the 2e-8 measured after 10 steps and the 3e-5 of a jump, far below the 2e-2 that
# missing contributions cost.
TOLERANCE = 1e-4

# Lowest accuracy on the plot, in percent. Chosen: above it the runs are distinct.
PLOT_FROM = 80.0

# Height of the lowest name on the plot, and distance of two names, in percent. Chosen:
# four names fit below the lines.
LABELS_FROM = 82.0
LABELS_STEP = 4.0

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn", "jax_optireduce")


def summarise(results: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the output of the runs and compares their parameters.

    Args:
      results: folder with <transport>.json and <transport>.npz.
      settings: the options of the demonstration.

    Returns:
      The content of demo-summary.json.
    """
    runs, params = {}, {}
    for transport in TITLES:
        runs[transport] = json.loads((results / f"{transport}.json").read_text())
        with np.load(results / f"{transport}.npz") as file:
            params[transport] = {when: file[when].astype(np.float64) for when in file}
    for transport, figures in runs.items():
        for when, reference in params["gloo"].items():
            difference = np.linalg.norm(params[transport][when] - reference)
            distance = float(difference / np.linalg.norm(reference))
            figures[f"distance_to_gloo_{when}"] = distance
    return {
        "exact_equals_gloo": runs["exact"]["distance_to_gloo_early"] <= TOLERANCE,
        "tolerance": TOLERANCE,
        "settings": {name: _plain(value) for name, value in settings.items()},
        "versions": {"python": platform.python_version(), **_versions()},
        "cores": len(os.sched_getaffinity(0)),
        "runs": runs,
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def write(summary: Mapping[str, Any], output: Path) -> None:
    """Writes demo-summary.json and accuracy.png into the folder `output`."""
    text = json.dumps(summary, indent=2)
    (output / "demo-summary.json").write_text(text + "\n")
    plot(summary, output / "accuracy.png")


def show(summary: Mapping[str, Any], output: Path, console: Console) -> None:
    """Prints the table, and its findings."""
    runs = summary["runs"]
    # Chosen: fits into the 80 columns of a log.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("gradients through", no_wrap=True)
    for heading in (
        "held-out\naccuracy",
        "all\nsteps",
        "step\nP50",
        "step\nP99",
        "\nmissing",
        "replicas\napart",
        "Gloo\napart",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for transport, title in TITLES.items():
        table.add_row(title, *_cells(runs[transport]))
    console.print()
    console.print(table)
    notes = Table.grid(padding=(0, 2))
    for subject, note in _notes(summary).items():
        notes.add_row(Text(subject, style="bold"), note)
    console.print(notes, highlight=False)
    console.print(f"\nIn {output}/: accuracy.png, demo-summary.json", highlight=False)


def _notes(summary: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the findings of the table, by subject."""
    settings = summary["settings"]
    runs = summary["runs"]
    exact, bounded, lossy = runs["exact"], runs["bounded"], runs["lossy"]
    verdict = (
        f"The same parameters as through Gloo after {exact['early_step']} steps"
        if summary["exact_equals_gloo"]
        else "FAILED: not the parameters that Gloo leads to"
    )
    bits = "the same bits" if exact["replica_distance"] == 0 else "OTHER BITS"
    about_exact = (
        f"{verdict} (relative distance {exact['distance_to_gloo_early']:.0e}, allowed "
        f"{summary['tolerance']:.0e}), and {bits} on every rank to the end. "
        "Adding in another order rounds differently, which training amplifies: Gloo "
        "apart."
    )
    about_bounded = (
        f"{_percent(settings['drop'])} of the datagrams were dropped. "
        f"{_percent(bounded['missing_contributions'])} of the contributions and "
        f"{_percent(bounded['missing_results'])} of the results missed the deadline of "
        f"{1000 * settings['deadline_s']:.0f} ms and arrived with a later step."
    )
    about_lossy = (
        f"{_percent(settings['drop'])} of the datagrams were dropped and, after the "
        "first 20 steps, none was retransmitted: "
        f"{_percent(lossy['missing_contributions'])} of the contributions and "
        f"{_percent(lossy['missing_results'])} of the results are missing. No step "
        "waits for gradients longer than its deadline of "
        f"{1000 * settings['deadline_s']:.0f} ms. Ranks miss different data, so "
        "the replicas drift apart."
    )
    about_times = (
        "Of rank 0, without starting, compiling and evaluating. lax.pmean reduces each "
        "of the 8 parameter arrays by itself, optireduce all of them in one bucket."
    )
    return {
        "exact": about_exact,
        "bounded": about_bounded,
        "lossy": about_lossy,
        "times": about_times,
    }


def _cells(figures: Mapping[str, Any]) -> Sequence[str]:
    """Returns the cells of one run, in the order of the columns."""
    missing = figures["missing_contributions"] + figures["missing_results"]
    return (
        _percent(np.mean(figures["accuracy_by_rank"])),
        f"{figures['seconds']:.1f} s",
        f"{1000 * figures['step_seconds_p50']:.0f} ms",
        f"{1000 * figures['step_seconds_p99']:.0f} ms",
        _percent(missing / 2) if missing else "-",
        _distance(figures["replica_distance"]),
        _distance(figures["distance_to_gloo_final"]),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _distance(value: float) -> str:
    """Formats a relative distance; one of rounding errors is no percentage."""
    if value == 0:
        return "0"
    return _percent(value) if value >= 1e-3 else f"{value:.0e}"


def plot(summary: Mapping[str, Any], path: Path) -> None:
    """Draws held-out accuracy against training time as a PNG picture."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    ends = {}
    for transport in TITLES:
        curve = np.array(summary["runs"][transport]["curve"])
        seconds, accuracy = curve[:, 0], 100 * curve[:, 1]
        axes.plot(
            seconds,
            accuracy,
            color=COLOURS[transport],
            linestyle=DASHES[transport],
            linewidth=2.2,
        )
        axes.plot(seconds[-1], accuracy[-1], "o", color=COLOURS[transport])
        ends[transport] = (seconds[-1], accuracy[-1])
    axes.set_ylim(PLOT_FROM, 100.5)
    axes.set_xlim(0, 1.03 * max(seconds for seconds, _ in ends.values()))
    axes.yaxis.set_major_locator(MultipleLocator(5))
    _label(axes, ends, summary)
    settings = summary["settings"]
    axes.set_title(
        f"Handwritten digits, {settings['processes']} processes: one training, four "
        "transports of the gradients",
        loc="left",
        fontsize=12,
    )
    axes.set_xlabel("training time (s)")
    axes.set_ylabel("held-out accuracy (%)")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


def _label(
    axes: Any, ends: Mapping[str, tuple[float, float]], summary: Mapping[str, Any]
) -> None:
    """Names each line below its end, in place of a legend."""
    # All lines end at about the same height, so the names have different heights: names
    # of earlier ends are lower, so that no pointer crosses a name.
    order = sorted(ends, key=lambda transport: ends[transport][0])
    last = ends[order[-1]][0]
    for place, transport in enumerate(order):
        seconds, accuracy = ends[transport]
        title = TITLES[transport]
        if transport in ("bounded", "lossy"):
            title += f", {_percent(summary['settings']['drop'])} dropped"
        # On the side of its pointer with more space.
        left = seconds < 0.65 * last
        axes.plot(
            [seconds, seconds],
            [LABELS_FROM + LABELS_STEP * place - 1, accuracy],
            color=COLOURS[transport],
            linewidth=0.8,
        )
        axes.annotate(
            f"{title}\n{accuracy:.1f} % after {seconds:.1f} s",
            xy=(seconds, LABELS_FROM + LABELS_STEP * place),
            xytext=(6 if left else -6, 0),
            textcoords="offset points",
            color=COLOURS[transport],
            ha="left" if left else "right",
            va="center",
            fontsize=10.5,
            fontweight="bold",
        )
