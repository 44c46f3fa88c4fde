"""The tables of `accuracy.py`."""

import itertools
from collections.abc import Sequence

import numpy as np
from results import Row, having

TITLES = {"fashion": "Fashion-MNIST", "text": "text"}
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}


def tables(rows: Sequence[Row]) -> str:
    """Returns two tables in Markdown: accuracies, and the costs of each scheme.

    Args:
      rows: figures of the cells, as from `accuracy_train.py`.
    """
    seeds = len({row["seed"] for row in rows})
    shares = _shares_lost(rows)
    setting = (
        f"{rows[0]['steps']} steps, {seeds} seed(s). Accuracy of `exact` in percent, "
        "and standard deviation; differences from the run with the same seed, in "
        f"points; {', '.join(map(_network, shares))}:"
    )
    return "\n\n".join([setting, _accuracies(rows, shares), _costs(rows)])


def _accuracies(rows: Sequence[Row], lost: Sequence[int]) -> str:
    """Returns a line for each training, with a column for each scheme."""
    schemes = [name for name in _schemes(rows) if name != "exact"]
    lines = _head(["training", "`exact`", *map(_code, schemes)], 1)
    for (task, title), (optimizer, name) in itertools.product(
        TITLES.items(), OPTIMIZERS.items()
    ):
        chosen = having(rows, task=task, optimizer=optimizer)
        exact = having(chosen, scheme="exact", lost_percent=0)
        if not exact:
            continue
        reference = {row["seed"]: _accuracy(row) for row in exact}
        accuracies = list(reference.values())
        cells = [f"{np.mean(accuracies):.2f} ± {_deviation(accuracies):.2f}"]
        for scheme in schemes:
            found = [having(chosen, scheme=scheme, lost_percent=each) for each in lost]
            cells.append(
                ", ".join(_difference(runs, reference) for runs in found if runs)
            )
        lines.append(_line([f"{title}, {name}", *cells]))
    return "\n".join(lines)


def _costs(rows: Sequence[Row]) -> str:
    """Returns a line for each mode and network: means over the trainings."""
    columns = {
        "ms a step": lambda runs: f"{_mean(runs, 'step_ms'):.0f}",
        "contributions missing": lambda runs: _share(
            _mean(runs, "missing_contributions")
        ),
        "results missing": lambda runs: _share(_mean(runs, "missing_results")),
        "drift": lambda runs: _share(_mean(runs, "drift")),
    }
    lines = _head(["scheme", "network", *columns], 2)
    for scheme in _schemes(rows):
        if scheme.endswith("late"):
            continue  # Its calls are those of `exact`.
        of_scheme = having(rows, scheme=scheme)
        for lost in _shares_lost(of_scheme):
            runs = having(of_scheme, lost_percent=lost)
            cells = [column(runs) for column in columns.values()]
            lines.append(_line([_code(scheme), _network(lost), *cells]))
    return "\n".join(lines)


def _schemes(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["scheme"] for row in rows))


def _head(names: Sequence[str], texts: int) -> list[str]:
    """Returns two lines; the columns after the texts are numbers."""
    return [_line(names), _line(["---"] * texts + ["--:"] * (len(names) - texts))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(scheme: str) -> str:
    mode, comma, step = scheme.partition(",")
    return scheme if mode.endswith("late") else f"`{mode}`{comma}{step}"


def _accuracy(row: Row) -> float:
    """Returns the mean over the ranks, in percent."""
    return 100 * float(np.mean(row["accuracy_by_rank"]))


def _difference(runs: Sequence[Row], reference: dict[int, float]) -> str:
    paired = [
        _accuracy(row) - reference[row["seed"]]
        for row in runs
        if row["seed"] in reference
    ]
    return f"{np.mean(paired):+.2f}" if paired else "-"


def _shares_lost(rows: Sequence[Row]) -> list[int]:
    return sorted({row["lost_percent"] for row in rows})


def _network(lost: int) -> str:
    return f"{lost} % lost" if lost else "no loss"


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _deviation(values: Sequence[float]) -> float:
    """Returns the standard deviation of a sample."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _share(share: float) -> str:
    """Formats a share as a percentage of two digits; 0 is exactly 0."""
    return f"{100 * share:.2g} %" if share else "0"
