"""The output of `tta.py`: tables, and pictures of the accuracy over time."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import scipy.stats
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from results import Row, having

Targets = Mapping[tuple[str, str], float]

# The reference of all ratios, and the schemes with three of them.
GLOO, MAIN = "Gloo, one array", ("exact", "bounded", "bounded, auto")

# The figures of a run in a table; the tables of more schemes have the first one.
FIGURES = ("reached_s", "step_ms", "step_ms_p99")

# The impairments with the paper's tails: low and high.
TAILS = ("tail1.5", "tail3")

# The table of README.md.
FIRST_TRAINING = {"task": "text", "optimizer": "sgd", "mbps": 250, "ranks": 4}
FIRST_IMPAIRMENTS = ("quiet", "pauses", "tail3", "bursts0.4", "loss1", "slow3")

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


def trimmed(values: Sequence[float]) -> str:
    """Returns the mean of values: without the extremes, and with its interval of 95 %.

    Fewer than `SEEDS_TRIMMED` values have a plain mean.
    """
    if len(values) < SEEDS_TRIMMED:
        return f"{np.mean(values):.2f}"
    kept = np.sort(values)[1:-1]
    width = scipy.stats.t.ppf(0.975, len(kept) - 1) * scipy.stats.sem(kept)
    return f"{np.mean(kept):.2f} ± {width:.2f}"


def tables(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Returns all tables of some runs, in Markdown.

    Runs at several rates have the table of `_rates`. Otherwise each training has one of
    ratios to Gloo with one array. A ratio is that of two runs with the same seed. The
    columns of a scheme are the time to the target, the mean time of a step and its P99;
    with several seeds the first one has its interval. A second table has the other
    schemes, with the time to the target and the accuracy.

    Args:
      rows: figures of the runs.
      titles: event of each impairment, by its name.
    """
    if len({row["mbps"] for row in rows}) > 1:
        return "\n".join(_rates(rows))
    parts = []
    fields = ("task", "optimizer", "ranks", "mbps")
    for values in dict.fromkeys(tuple(row[name] for name in fields) for row in rows):
        task, optimizer, ranks, mbps = values
        mine = having(rows, **dict(zip(fields, values, strict=True)))
        parts += [f"### {task}, {optimizer}, {ranks} ranks, {mbps} Mbit/s", ""]
        found = [name for name in titles if having(mine, impairment=name)]
        schemes = list(dict.fromkeys(row["scheme"] for row in mine))
        main = [scheme for scheme in MAIN if scheme in schemes]
        if main:
            columns = ["impairment", "seeds", "Gloo", *(f"`{s}`" for s in main)]
            parts += _head([*columns, "`bounded`: late", "accuracy (Gloo's)"])
            for name in found:
                title = f"`{name}`: {titles[name]}"
                parts.append(_ratios(having(mine, impairment=name), main, title))
            parts += [_high_to_low(mine, [GLOO, *main]), ""]
        others = [scheme for scheme in schemes if scheme not in (GLOO, *main)]
        if others:
            parts += [*_others(mine, found, others), ""]
    return "\n".join(parts)


def _others(
    rows: Sequence[Row], impairments: Sequence[str], schemes: Sequence[str]
) -> list[str]:
    """Returns the table of other schemes: ratio of the time, and accuracy."""
    lines = _head(["impairment", "seeds", *(f"`{s}`" for s in schemes)])
    for name in impairments:
        mine = having(rows, impairment=name)
        gloo = {row["seed"]: row for row in having(mine, scheme=GLOO)}
        found = [having(mine, scheme=scheme) for scheme in schemes]
        if not any(found):
            continue
        cells = [f"`{name}`", str(max(len(of) for of in found))]
        for of in found:
            ratio, accuracy = _ratio(of, gloo, FIGURES[:1]), ""
            if of and all("curve" in row for row in of):
                accuracy = f", {100 * _mean(of, 'accuracy'):.1f} %"
            cells.append(f"{ratio}{accuracy}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _rates(rows: Sequence[Row]) -> list[str]:
    """Returns the table of runs at several rates, by scheme.

    It has the mean time of later steps at each rate, and the bytes of a step; of runs
    without other computation the loss, by the number of steps.
    """
    rows = [row for row in rows if "curve" in row]
    timed = [row for row in rows if row["compute_ms"]]
    rates = sorted({row["mbps"] for row in timed})
    lengths = sorted({row["steps"] for row in rows if not row["compute_ms"]})
    columns = ["scheme", *(f"ms at {mbps} Mbit/s" for mbps in rates), "kB a step"]
    lines = _head([*columns, *(f"loss after {steps:,} steps" for steps in lengths)])
    impairments = dict.fromkeys(row["impairment"] for row in rows)
    schemes = dict.fromkeys(row["scheme"] for row in rows)
    for impairment, scheme in itertools.product(impairments, schemes):
        mine = having(rows, impairment=impairment, scheme=scheme)
        if not mine:
            continue
        title = f"`{scheme}`"
        cells = [title if impairment == "quiet" else f"{title}, `{impairment}`"]
        for mbps in rates:
            found = [row for row in having(mine, mbps=mbps) if row["compute_ms"]]
            cells.append(f"{_mean(found, 'late_step_ms'):.0f}" if found else "")
        cells.append(f"{_mean(mine, 'step_bytes') / 1000:.3g}")
        for steps in lengths:
            found = having(mine, steps=steps, compute_ms=0.0)
            losses = [row["loss"] for row in found]
            shown = f"{np.mean(losses):.3f} ± {np.std(losses):.3f}" if losses else ""
            cells.append(shown)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _head(columns: Sequence[str]) -> list[str]:
    """Returns the first lines of a table."""
    return [f"| {' | '.join(columns)} |", f"| --- |{' --: |' * (len(columns) - 1)}"]


def _ratios(rows: Sequence[Row], schemes: Sequence[str], title: str) -> str:
    """Returns the line of an impairment."""
    gloo = {row["seed"]: row for row in having(rows, scheme=GLOO)}
    ended = [row for row in gloo.values() if "curve" in row]
    cells = [title, str(len({row["seed"] for row in rows}))]
    cells.append(_facts(list(gloo.values())))
    cells += [_ratio(having(rows, scheme=scheme), gloo) for scheme in schemes]
    mine = [row for row in having(rows, scheme="bounded") if "curve" in row]
    late = f"{100 * _mean(mine, 'missing_contributions'):.1f} %" if mine else ""
    cells.append(late)
    found = [f"{100 * _mean(of, 'accuracy'):.1f}" for of in (mine, ended) if of]
    cells.append(f"{found[0]} ({found[1]})" if len(found) > 1 else "".join(found))
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
    """Returns the table of README.md; see `tables`."""
    columns = ["impairment", "Gloo: seconds to the target"]
    columns += [f"`{scheme}`" for scheme in MAIN]
    lines = _head(columns)
    mine = having(rows, **FIRST_TRAINING)
    for name in FIRST_IMPAIRMENTS:
        found = having(mine, impairment=name)
        if not found:
            continue
        gloo = {row["seed"]: row for row in having(found, scheme=GLOO)}
        shown = [having(found, scheme=scheme) for scheme in MAIN]
        cells = [titles[name], _seconds(list(gloo.values()))]
        cells += [_ratio(of, gloo, FIGURES[:1]) for of in shown]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(
    rows: Sequence[Row], gloo: Mapping[int, Row], figures: Sequence[str] = FIGURES
) -> str:
    """Returns the ratios of a scheme, to the runs of Gloo with the same seeds.

    Where Gloo fails, it returns the times of the scheme.
    """
    pairs = [(r, gloo[r["seed"]]) for r in rows if "curve" in gloo.get(r["seed"], {})]
    if not pairs or any("curve" not in row for row in rows):
        return _facts(rows, figures)
    shown = []
    for name in figures:
        values = [(one[name], other[name]) for one, other in pairs]
        if any(None in value for value in values):
            shown.append("never" if name == "reached_s" else "-")
            continue
        found = [one / other for one, other in values]
        first = name == "reached_s"
        shown.append(trimmed(found) if first else trimmed(found).partition(" ")[0])
    return ", ".join(shown)


def _facts(rows: Sequence[Row], figures: Sequence[str] = FIGURES) -> str:
    """Returns the seconds to the target, the ms of a step, and its P99."""
    failed = sum("curve" not in row for row in rows)
    if failed or not rows:
        return f"{failed} of {len(rows)} fail" if failed else ""
    steps = (f"{_mean(rows, name):.0f}" for name in figures[1:])
    return ", ".join((_seconds(rows), *steps))


def _seconds(rows: Sequence[Row]) -> str:
    """Returns the mean time to the target, in seconds."""
    times = [row.get("reached_s") for row in rows]
    return "never" if None in times else f"{np.mean(times):.1f}"


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
        shown = [r for r in shown if r["scheme"] in (GLOO, *MAIN)]
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
