"""The output of `digits.py`: a table, a plot, and the figures as JSON."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine_load import BUSY_SHARE
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
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

# Lowest accuracy on the plot, in percent, unless a run ends below it. Chosen: above it
# the runs are distinct.
PLOT_FROM = 80.0

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
        "taken_by_others": _most([run["taken_by_others"] for run in runs.values()]),
        "runs": runs,
    }


def _most(shares: Sequence[float | None]) -> float | None:
    """Returns the largest share; None if one is unknown."""
    known = [share for share in shares if share is not None]
    return max(known) if len(known) == len(shares) else None


def is_busy(summary: Mapping[str, Any]) -> bool:
    """Returns whether other programs took so much that the times are no figures."""
    return (summary["taken_by_others"] or 0.0) > BUSY_SHARE


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
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("gradients\nthrough", no_wrap=True)
    for heading in (
        "held-out\naccuracy",
        "all\nsteps",
        "step\nP50",
        "step\nP99",
        "contr.\nmissing",
        "results\nmissing",
        "replicas\napart",
        "Gloo\napart",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for transport, title in TITLES.items():
        table.add_row(title.removeprefix("optireduce "), *_cells(runs[transport]))
    console.print()
    if about_load := load_note(summary):
        console.print(f"{about_load}\n", style="bold", highlight=False)
    console.print(table)
    console.print()
    notes = Table.grid(padding=(0, 2))
    for subject, note in _notes(summary).items():
        notes.add_row(Text(subject, style="bold"), note)
    console.print(notes, highlight=False)
    files = f"\nIn {output}/: accuracy.png, demo-summary.json"
    console.print(files, highlight=False, markup=False, soft_wrap=True)


def load_note(summary: Mapping[str, Any]) -> str:
    """Returns the warning about other programs on this machine; "" without one."""
    taken = summary["taken_by_others"]
    if taken is None:
        return (
            "The load of this machine is unknown: its kernel does not count the time "
            "that programs wait for a processor. Beside other programs the times below "
            "are no figures."
        )
    if not is_busy(summary):
        return ""
    return (
        f"This machine is too busy for figures: other programs took {_percent(taken)} "
        "of the processor time that the ranks needed. The times below are no figures; "
        "repeat the run on an idle machine."
    )


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
        f"{_percent(bounded['missing_results'])} of the results missed the deadline "
        f"({_deadline(settings, bounded)}) and arrived with a later step."
    )
    about_lossy = (
        f"{_percent(settings['drop'])} of the datagrams were dropped and, after the "
        "first 20 steps, none was retransmitted: "
        f"{_percent(lossy['missing_contributions'])} of the contributions and "
        f"{_percent(lossy['missing_results'])} of the results are missing. No step "
        "waits for gradients longer than its deadline "
        f"({_deadline(settings, lossy)}). Ranks miss different data, so the replicas "
        "drift apart."
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


def _deadline(settings: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    learned = "" if settings["deadline_s"] else "learned, at the end "
    return f"{learned}{_time(figures['deadline_s'])}"


def _cells(figures: Mapping[str, Any]) -> Sequence[str]:
    """Returns the cells of one run, in the order of the columns."""
    missing = (figures["missing_contributions"], figures["missing_results"])
    return (
        _percent(accuracy(figures)),
        _time(figures["seconds"]),
        _time(figures["step_seconds_p50"]),
        _time(figures["step_seconds_p99"]),
        *(_percent(share) if any(missing) else "-" for share in missing),
        _distance(figures["replica_distance"]),
        _distance(figures["distance_to_gloo_final"]),
    )


def accuracy(figures: Mapping[str, Any]) -> float:
    """Returns the held-out accuracy at the end, the mean of the ranks."""
    return float(np.mean(figures["accuracy_by_rank"]))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _time(seconds: float) -> str:
    """Formats a time in at most six characters, up to three hours."""
    if round(1000 * seconds) < 1000:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if round(seconds, 1) < 100 else f"{seconds:.0f} s"


def _distance(value: float) -> str:
    """Formats a relative distance; one of rounding errors is no percentage."""
    if value == 0:
        return "0"
    return _percent(value) if value >= 1e-3 else f"{value:.0e}"


def plot(summary: Mapping[str, Any], path: Path) -> None:
    """Draws held-out accuracy against training time as a PNG picture."""
    picture(summary).savefig(path, dpi=160)


def picture(summary: Mapping[str, Any]) -> Figure:
    """Returns the picture; its texts are outside the axes, where no line is."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    settings = summary["settings"]
    for transport in TITLES:
        seconds, shares = np.array(summary["runs"][transport]["curve"]).T
        axes.plot(
            seconds,
            100 * shares,
            color=COLOURS[transport],
            linestyle=DASHES[transport],
            linewidth=2.2,
            marker="o",
            markevery=[len(seconds) - 1],
            label=label(transport, summary),
        )
    lowest = min(100 * accuracy(run) for run in summary["runs"].values())
    axes.set_ylim(min(PLOT_FROM, 10 * np.floor(lowest / 10 - 0.5)), 101)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    axes.set_title(
        f"Handwritten digits, {settings['processes']} processes: one training, four "
        "transports of the gradients",
        loc="left",
        fontsize=12,
    )
    busy = " on a busy machine: no figures" if is_busy(summary) else ""
    axes.set_xlabel(f"training time (s){busy}")
    axes.set_ylabel("held-out accuracy (%)")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=10.5)
    return figure


def label(transport: str, summary: Mapping[str, Any]) -> str:
    """Returns the name of a line, with the figures of its end."""
    run = summary["runs"][transport]
    name = TITLES[transport]
    if transport in ("bounded", "lossy"):
        name += f", {_percent(summary['settings']['drop'])} dropped"
    return f"{name}: {_percent(accuracy(run))} after {_time(run['seconds'])}"
