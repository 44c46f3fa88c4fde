"""The tables of `accuracy.py`."""

import os
import platform
from collections.abc import Callable, Sequence

import numpy as np
from results import Row, having

TITLES = {
    "fashion": "Fashion-MNIST: a convolutional network of {parameters:,} parameters",
    "text": "Text: a character transformer of {parameters:,} parameters",
}
OPTIMIZERS = {"sgd": "SGD with momentum", "adamw": "AdamW"}


def tables(rows: Sequence[Row], processes: int) -> str:
    """Returns one table for each task and optimizer, in Markdown.

    Args:
      rows: figures of the cells, as from `accuracy_train.py`.
      processes: number of ranks.
    """
    one = rows[0]
    deadline = f"{one['deadline_ms']:g} ms" if one["deadline_ms"] else "learned"
    setting = (
        f"{processes} ranks on one host with {len(os.sched_getaffinity(0))} cores, "
        f"Python {'.'.join(platform.python_version_tuple()[:2])} (and its text), "
        f"{one['steps']} steps, {len({row['seed'] for row in rows})} seed(s); deadline "
        f"of `lossy` and `bounded`: {deadline}"
    )
    if having(rows, condition="straggler"):
        setting += f"; the straggler sleeps {one['straggler_ms']:g} ms in each step"
    parts = [f"{setting}."]
    for task in TITLES:
        for optimizer in OPTIMIZERS:
            chosen = having(rows, task=task, optimizer=optimizer)
            if chosen:
                parts.append(_table(task, optimizer, chosen))
    return "\n\n".join(parts)


def _table(task: str, optimizer: str, rows: Sequence[Row]) -> str:
    reference = {
        row["seed"]: row for row in having(rows, scheme="exact", condition="0")
    }
    title = TITLES[task].format(**rows[0])
    lines = [f"### {title}, {OPTIMIZERS[optimizer]}", ""]
    if reference:
        accuracies = [100 * np.mean(r["accuracy_by_rank"]) for r in reference.values()]
        spread = (
            f"`exact`: {np.mean(accuracies):.2f} %, standard deviation over "
            f"{len(accuracies)} seed(s) {_deviation(accuracies):.2f} points."
        )
        lines += [spread, ""]
    columns = _columns(reference)
    lines.append("| network | scheme | " + " | ".join(columns) + " |")
    lines.append("| --- | --- |" + " --: |" * len(columns))
    conditions = sorted({row["condition"] for row in rows}, key=_order)
    for condition in conditions:
        for scheme in dict.fromkeys(row["scheme"] for row in rows):
            cell = having(rows, condition=condition, scheme=scheme)
            if cell:
                values = (str(column(cell)) for column in columns.values())
                network = _network(condition)
                if len(cell) < len(reference):
                    network += f" ({len(cell)} of {len(reference)} seeds)"
                lines.append(f"| {network} | `{scheme}` | " + " | ".join(values) + " |")
    return "\n".join(lines)


def _columns(reference: dict[int, Row]) -> dict[str, Callable[[Sequence[Row]], str]]:
    """Returns the columns: heading -> content for the runs (one per seed) of a cell."""

    def accuracy(rows: Sequence[Row]) -> str:
        return f"{100 * _mean(rows, 'accuracy_by_rank'):.2f} %"

    def worst(rows: Sequence[Row]) -> str:
        return f"{100 * np.mean([min(row['accuracy_by_rank']) for row in rows]):.2f} %"

    def against_exact(rows: Sequence[Row]) -> str:
        pairs = [
            (row, reference[row["seed"]]) for row in rows if row["seed"] in reference
        ]
        if not pairs:
            return "-"
        differences = [
            100 * (np.mean(a["accuracy_by_rank"]) - np.mean(b["accuracy_by_rank"]))
            for a, b in pairs
        ]
        return f"{np.mean(differences):+.2f}"

    return {
        "accuracy": accuracy,
        "worst rank": worst,
        "against `exact`, points": against_exact,
        "drift": lambda rows: _share(_mean(rows, "drift")),
        "ms a step": lambda rows: f"{_mean(rows, 'step_ms'):.0f}",
        "contributions missing": lambda rows: _share(
            _mean(rows, "missing_contributions")
        ),
        "results missing": lambda rows: _share(_mean(rows, "missing_results")),
    }


def _order(condition: str) -> float:
    return np.inf if condition == "straggler" else float(condition)


def _network(condition: str) -> str:
    if condition == "straggler":
        return "one slow rank"
    return f"{condition} % lost" if float(condition) else "clean"


def _mean(rows: Sequence[Row], name: str) -> float:
    """Returns the mean over the seeds, and over the ranks for values by rank."""
    return float(np.mean([np.mean(row[name]) for row in rows]))


def _deviation(values: Sequence[float]) -> float:
    """Returns the standard deviation of a sample."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _share(share: float) -> str:
    """Formats a share as a percentage of three digits; 0 is exactly 0."""
    return f"{100 * share:.3g} %" if share else "0"
