"""The output of `tta.py`: a table, and a picture of the accuracy over time."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import scipy.stats
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from results import Row, having

Targets = Mapping[tuple[str, str], float]

# The faster one of a table is its reference.
GLOO = "Gloo, one array"
REFERENCES = ("Gloo", GLOO)

COLUMNS = (
    "Mbit/s",
    "impairment",
    "scheme",
    "to target",
    "/ Gloo",
    "steps to it",
    "mean step",
    "P50",
    "P99",
    "deadline",
    "missing",
    "deferred",
    "accuracy",
    "loss",
    "drift",
    "kB a step",
)

# The impairments with the paper's tails: low and high.
TAILS = ("tail1.5", "tail3")

# The table of README.md.
FIRST_TRAINING = {"task": "text", "optimizer": "sgd", "mbps": 250}
FIRST_IMPAIRMENTS = ("quiet", "pauses", "tail3", "bursts0.4", "loss1", "slow3")
FIRST_SCHEMES = ("exact", "bounded", "bounded, auto")

# Seeds from which the fastest and the slowest are left out of a mean, which then has
# its interval of 95 %. Source: MLPerf Training, the rules of its submissions.
SEEDS_TRIMMED = 5

# Source: Okabe and Ito, "Color Universal Design": distinct with any colour vision.
_COLOURS = {
    "Gloo": "#555555",
    "Gloo, one array": "#000000",
    "Gloo, bfloat16": "#56B4E9",
    "Gloo, accumulated": "#8C510A",
    "exact": "#0072B2",
    "agreed": "#CC79A7",
    "bounded": "#009E73",
    "bounded, auto": "#F0E442",
    "lossy": "#D55E00",
    "bounded, bfloat16": "#56B4E9",
    "bounded, int8": "#E69F00",
    "bounded, float4": "#D55E00",
    "PowerSGD, rank 4": "#CC79A7",
    "outer, 10": "#0072B2",
    "outer, 50": "#F0E442",
    "no calls": "#999999",
}


def reached(
    noted: np.ndarray, accuracies: np.ndarray, ends_s: np.ndarray, target: float
) -> tuple[float, int] | None:
    """Returns the first time at which a replica has the target accuracy.

    Args:
      noted: steps after which the accuracy is known.
      accuracies: accuracies after these steps.
      ends_s: ends of all steps, in seconds.
      target: target accuracy.

    Returns:
      Time in seconds, and steps; None without the target accuracy.
    """
    above = np.flatnonzero(np.asarray(accuracies) >= target)
    if not above.size:
        return None
    steps = int(noted[above[0]])
    return float(ends_s[steps - 1]), steps


def line(row: Row) -> str:
    """Returns one run in one line."""
    names = ("task", "optimizer", "impairment", "scheme", "seed")
    title = " ".join(f"{row[name]}" for name in names)
    if "curve" not in row:
        return f"{title}: no rank has ended"
    return (
        f"{title}: target after {_seconds([row])} s, "
        f"{row['step_ms']:.0f} ms a step, accuracy {100 * row['accuracy']:.1f} %"
    )


def table(rows: Sequence[Row], defaults: Sequence[str], targets: Targets) -> str:
    """Returns a table for each task and optimizer, in Markdown.

    Args:
      rows: figures of the runs.
      defaults: schemes with a row each; the others have one row, of the best.
      targets: accuracy by task and optimizer.
    """
    parts = []
    for (task, optimizer), target in targets.items():
        mine = having(rows, task=task, optimizer=optimizer)
        if not mine:
            continue
        seeds = len({row["seed"] for row in mine})
        parts += [
            f"### {task}, {optimizer}: to {100 * target:g} %, {seeds} seed(s)",
            "",
        ]
        parts.append(f"| {' | '.join(COLUMNS)} |")
        parts.append(f"| --: | --- | --- |{' --: |' * (len(COLUMNS) - 3)}")
        for mbps in dict.fromkeys(row["mbps"] for row in mine):
            at_rate = having(mine, mbps=mbps)
            for impairment in dict.fromkeys(row["impairment"] for row in at_rate):
                parts += _lines(having(at_rate, impairment=impairment), defaults)
        parts.append("")
    return "\n".join(parts)


def _lines(rows: Sequence[Row], defaults: Sequence[str]) -> list[str]:
    by_scheme = {
        scheme: having(rows, scheme=scheme)
        for scheme in dict.fromkeys(row["scheme"] for row in rows)
    }
    reference = min(_time(by_scheme.get(name, [])) for name in REFERENCES)
    shown = [(name, f"`{name}`") for name in defaults if name in by_scheme]
    others = [name for name in by_scheme if name not in defaults]
    if others:
        best = min(others, key=lambda name: _time(by_scheme[name]))
        shown.append((best, f"best of {len(others)}: `{best}`"))
    return [_line(by_scheme[name], title, reference) for name, title in shown]


def _line(rows: Sequence[Row], title: str, reference: float) -> str:
    ended = [row for row in rows if "curve" in row]
    cells = [str(rows[0]["mbps"]), rows[0]["impairment"], title]
    if not ended:
        return f"| {' | '.join(cells)} | does not end |{' |' * (len(COLUMNS) - 4)}"
    time_s = _time(rows)
    finite = np.isfinite(time_s) and np.isfinite(reference)
    steps = [row["reached_steps"] for row in ended if row["reached_steps"]]
    cells += [_seconds(rows), f"{time_s / reference:.2f}" if finite else "-"]
    cells.append(f"{np.mean(steps):.0f}" if steps else "-")
    cells += [f"{_mean(ended, name):.0f}" for name in ("step_ms", "step_ms_p50")]
    cells += [f"{_mean(ended, name):.0f}" for name in ("step_ms_p99", "deadline_ms")]
    missing = _mean(ended, "missing_contributions"), _mean(ended, "missing_results")
    cells.append(" / ".join(f"{100 * share:.1f} %" for share in missing))
    cells.append(f"{100 * _mean(ended, 'deferred'):.1f} %")
    accuracies = [100 * row["accuracy"] for row in ended]
    cells.append(f"{np.mean(accuracies):.1f} ± {np.std(accuracies):.1f}")
    cells.append(f"{_mean(ended, 'loss'):.3f}")
    cells.append(f"{100 * _mean(ended, 'drift'):.2g} %")
    cells.append(f"{_mean(ended, 'step_bytes') / 1000:.1f}")
    return f"| {' | '.join(cells)} |"


def trimmed(values: Sequence[float]) -> str:
    """Returns the mean of values: without the extremes, and with its interval of 95 %.

    Fewer than `SEEDS_TRIMMED` values have a plain mean.
    """
    if len(values) < SEEDS_TRIMMED:
        return f"{np.mean(values):.2f}"
    kept = np.sort(values)[1:-1]
    width = scipy.stats.t.ppf(0.975, len(kept) - 1) * scipy.stats.sem(kept)
    return f"{np.mean(kept):.2f} ± {width:.2f}"


def ratios(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Returns a table for each training, in Markdown: ratios to Gloo with one array.

    A ratio is that of two runs with the same seed. The columns of a scheme are the
    time to the target, the mean time of a step and its P99; with several seeds the
    first one has its interval.

    Args:
      rows: figures of the runs.
      titles: event of each impairment, by its name.
    """
    parts = []
    for task, optimizer, mbps in dict.fromkeys(
        (row["task"], row["optimizer"], row["mbps"]) for row in rows
    ):
        mine = having(rows, task=task, optimizer=optimizer, mbps=mbps)
        schemes = [s for s in dict.fromkeys(r["scheme"] for r in mine) if s != GLOO]
        columns = ["impairment", "seeds", "Gloo", *(f"`{s}`" for s in schemes)]
        columns += ["`bounded`: late", "accuracy (Gloo's)"]
        parts += [f"### {task}, {optimizer}, {mbps} Mbit/s", "", *_head(columns)]
        found = dict.fromkeys(row["impairment"] for row in mine)
        for name in titles:
            if name in found:
                title = f"`{name}`: {titles[name]}"
                parts.append(_ratios(having(mine, impairment=name), schemes, title))
        parts += [_high_to_low(mine, [GLOO, *schemes]), ""]
    return "\n".join(parts)


def _head(columns: Sequence[str]) -> list[str]:
    """Returns the first lines of a table."""
    return [f"| {' | '.join(columns)} |", f"| --- |{' --: |' * (len(columns) - 1)}"]


def _ratios(rows: Sequence[Row], schemes: Sequence[str], title: str) -> str:
    """Returns the line of an impairment."""
    gloo = {row["seed"]: row for row in having(rows, scheme=GLOO)}
    ended = [row for row in gloo.values() if "curve" in row]
    cells = [title, str(len(gloo))]
    facts = [_seconds(list(gloo.values()))]
    facts += [f"{_mean(ended, n):.0f}" for n in ("step_ms", "step_ms_p99") if ended]
    cells.append(", ".join(facts))
    cells += [_ratio(having(rows, scheme=scheme), gloo) for scheme in schemes]
    mine = [r for r in having(rows, scheme="bounded") if "curve" in r]
    mine = [row for row in mine if row["seed"] in gloo]
    late = f"{100 * _mean(mine, 'missing_contributions'):.1f} %" if mine else ""
    cells.append(late)
    found = [100 * _mean(of, "accuracy") for of in (mine, ended) if of]
    cells.append(f"{found[0]:.1f} ({found[1]:.1f})" if len(found) > 1 else "")
    return f"| {' | '.join(cells)} |"


def _high_to_low(rows: Sequence[Row], schemes: Sequence[str]) -> str:
    """Returns the line of the ratio of a scheme's own times, in a long and short tail.

    Source: OptiReduce, which has it of its own time to accuracy.
    """
    low, high = (
        {
            (row["scheme"], row["seed"]): row["reached_s"]
            for row in having(rows, impairment=name)
            if row.get("reached_s")
        }
        for name in TAILS
    )
    cells = [f"`{TAILS[1]}` / `{TAILS[0]}`, each scheme by itself"]
    cells.append(str(len({seed for _, seed in low.keys() & high.keys()})))
    for scheme in schemes:
        pairs = [run for run in low.keys() & high.keys() if run[0] == scheme]
        found = [high[run] / low[run] for run in pairs]
        cells.append(trimmed(found) if found else "")
    return f"| {' | '.join([*cells, '', ''])} |" if any(cells[2:]) else ""


def first_screen(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Returns the table of README.md; see `ratios`."""
    columns = ["impairment", "Gloo: seconds to the target"]
    columns += [f"`{scheme}`" for scheme in FIRST_SCHEMES]
    lines = _head(columns)
    mine = having(rows, **FIRST_TRAINING)
    for name in FIRST_IMPAIRMENTS:
        found = having(mine, impairment=name)
        if not found:
            continue
        gloo = {row["seed"]: row for row in having(found, scheme=GLOO)}
        shown = [having(found, scheme=scheme) for scheme in FIRST_SCHEMES]
        cells = [titles[name], _seconds(list(gloo.values()))]
        cells += [_ratio(of, gloo).partition(",")[0] for of in shown]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(rows: Sequence[Row], gloo: Mapping[int, Row]) -> str:
    """Returns the ratios of a scheme, to the runs of Gloo with the same seeds."""
    if not rows:
        return ""
    failed = sum("curve" not in row for row in rows)
    if failed:
        return f"{failed} of {len(rows)} fail"
    pairs = [(r, gloo[r["seed"]]) for r in rows if "curve" in gloo.get(r["seed"], {})]
    if not pairs:
        return ""
    shown = []
    for name in ("reached_s", "step_ms", "step_ms_p99"):
        values = [(one[name], other[name]) for one, other in pairs]
        if any(None in value for value in values):
            shown.append("never" if name == "reached_s" else "-")
            continue
        found = [one / other for one, other in values]
        first = name == "reached_s"
        shown.append(trimmed(found) if first else trimmed(found).partition(" ")[0])
    return ", ".join(shown)


def _time(rows: Sequence[Row]) -> float:
    """Returns the mean time to the target; infinite if a run did not reach it."""
    times = [row.get("reached_s") for row in rows]
    return float(np.mean(times)) if times and None not in times else np.inf


def _seconds(rows: Sequence[Row]) -> str:
    time_s = _time(rows)
    return f"{time_s:.1f}" if np.isfinite(time_s) else "never"


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def draw_rates(rows: Sequence[Row], path: Path) -> None:
    """Draws the mean time of later steps over the rate of the links, by scheme.

    Args:
      rows: figures of the runs.
      path: of the picture.
    """
    rows = [row for row in rows if "curve" in row]
    figure = Figure((7, 4.6), dpi=120)
    axes = figure.subplots()
    rates = sorted({row["mbps"] for row in rows})
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        at_rates = [having(rows, scheme=scheme, mbps=mbps) for mbps in rates]
        means = [
            _mean(found, "late_step_ms") if found else np.nan for found in at_rates
        ]
        style = "--" if "Gloo" in scheme else "-"
        axes.plot(rates, means, style, color=_COLOURS.get(scheme), label=scheme)
    axes.set(xscale="log", yscale="log", xlabel="rate of a link, Mbit/s")
    axes.set_ylabel("mean time of a step, ms")
    axes.grid(which="both", alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def draw(rows: Sequence[Row], targets: Targets, path: Path) -> None:
    """Draws the accuracy over time, by impairment (columns) and training (rows).

    Args:
      rows: figures of the runs; the picture has the first seed.
      targets: accuracy by task and optimizer.
      path: of the picture.
    """
    rows = [row for row in rows if "curve" in row and row["seed"] == 0]
    trainings = [
        training
        for training in targets
        if having(rows, task=training[0], optimizer=training[1])
    ]
    impairments = list(dict.fromkeys(row["impairment"] for row in rows))
    if not trainings:
        return
    figure = Figure((3.2 * len(impairments) + 1, 2.6 * len(trainings) + 1), dpi=120)
    grid = figure.subplots(
        len(trainings), len(impairments), squeeze=False, sharey="row"
    )
    for row_of_axes, (task, optimizer) in zip(grid, trainings, strict=True):
        for axes, impairment in zip(row_of_axes, impairments, strict=True):
            shown = having(rows, task=task, optimizer=optimizer, impairment=impairment)
            title = f"{task}, {optimizer}: {impairment}"
            _draw_curves(axes, shown, targets[task, optimizer], title)
    _finish(figure, grid, path)


def draw_first_screen(
    rows: Sequence[Row], titles: Mapping[str, str], targets: Targets, path: Path
) -> None:
    """Draws the picture of README.md; see `first_screen` and `draw`."""
    mine = [r for r in having(rows, **FIRST_TRAINING, seed=0) if "curve" in r]
    target = targets[FIRST_TRAINING["task"], FIRST_TRAINING["optimizer"]]
    figure = Figure((10, 5.4), dpi=120)
    grid = figure.subplots(2, len(FIRST_IMPAIRMENTS) // 2, sharey="row")
    for axes, name in zip(grid.flat, FIRST_IMPAIRMENTS, strict=True):
        shown = having(mine, impairment=name)
        shown = [r for r in shown if r["scheme"] in (GLOO, *FIRST_SCHEMES)]
        title = "\n".join(textwrap.wrap(titles[name], width=40))
        _draw_curves(axes, shown, target, title)
    _finish(figure, grid, path)


def _draw_curves(axes: Axes, rows: Sequence[Row], target: float, title: str) -> None:
    """Draws the accuracies of some runs over time."""
    for row in rows:
        accuracy = 100 * np.array(row["curve"])
        colour = _COLOURS.get(row["scheme"])
        axes.plot(row["curve_s"], accuracy, color=colour, label=row["scheme"])
    axes.axhline(100 * target, color="black", lw=0.6, ls=":")
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)


def _finish(figure: Figure, grid: np.ndarray, path: Path) -> None:
    """Adds the titles of the axes and the legend, and writes the picture."""
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy, %")
    for axes in grid[-1]:
        axes.set_xlabel("time, s")
    handles = {
        text: handle
        for axes in grid.flat
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="lower center", ncols=len(handles))
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path)
