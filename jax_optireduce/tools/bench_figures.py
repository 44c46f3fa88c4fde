"""Figures, ratios and tables of `bench`, from the times of calls."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import rich.table

from jax_optireduce._program import call
from jax_optireduce.tools import screen
from jax_optireduce.tools.bench_rank import TURN_CALLS, XLA, Calls

# Version of the JSON, for programs that read it.
SCHEMA = 1

# Source: the options of nccl-tests, in which 1K is 1,024 bytes.
# Ascending.
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# Columns of the table: title, unit, width. The width is known before the values: rows
# are printed one by one.
_COLUMNS = (
    ("size", "bytes", 7),
    ("mode", "", 7),
    ("P50", "ms", 5),
    ("algbw", "GB/s", 5),
    ("busbw", "GB/s", 5),
    ("P99", "ms", 5),
    ("P99.9", "ms", 5),
    ("max", "ms", 5),
    ("missed", "%", 6),
    ("hits", "", 5),
    ("CPU", "s/GB", 5),
    ("wrong", "", 5),
)


def parse_size(text: str) -> int:
    """Returns the bytes of "4", "1K", "100M" or "1.5G".

    Raises:
      ValueError: the text is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", text.strip().upper())
    if not match or float(match[1]) * _UNITS[match[2]] < 1:
        raise ValueError(
            f"a size must look like 4, 1K, 100M or 1G (K = 1024 bytes), got {text!r}"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def format_size(size_bytes: int) -> str:
    """Writes bytes as `parse_size` reads them, to one decimal."""
    text = ""
    for unit, unit_bytes in _UNITS.items():
        value = round(size_bytes / unit_bytes, 1)
        text = f"{value:.1f}".removesuffix(".0") + unit
        if value < 1024:  # rounded: 1G less one byte is "1G", not "1024M"
            break
    return text


def sizes(low_bytes: int, high_bytes: int, factor: float) -> list[int]:
    """Returns the sizes from the lowest to the highest, in bytes.

    Args:
      low_bytes: the first size.
      high_bytes: upper bound of the sizes.
      factor: ratio of consecutive sizes, above 1.
    """
    found, size = [], low_bytes
    while size <= high_bytes:
        found.append(size)
        size = max(size + 1, int(size * factor))
    return found


def figures(kind: str, calls: Calls, dtype: np.dtype) -> dict[str, Any]:
    """Returns the figures of one kind at one size.

    Args:
      kind: a mode, or `XLA`.
      calls: measurements of all ranks.
      dtype: of the data.

    Returns:
      An entry of "results" in the JSON.
    """
    ranks, count = calls.seconds.shape
    elements = int(calls.elements[0])
    size_bytes = elements * dtype.itemsize
    seconds = calls.seconds.max(axis=0)
    p50, p99, p999 = (_per_mille(seconds, share) for share in (500, 990, 999))
    algbw = size_bytes / p50 / 1e9
    missing = float(calls.missing.mean())
    checked = int(calls.checked.min())
    return {
        "bytes": size_bytes,
        "elements": elements,
        "dtype": dtype.name,
        "mode": kind,
        "p50_s": p50,
        "p99_s": p99,
        "p999_s": p999,
        "max_s": float(seconds.max()),
        "algbw_gb_s": algbw,
        "busbw_gb_s": algbw * 2 * (ranks - 1) / ranks,
        "late_share": missing if kind in call.DEFERRING_MODES else 0.0,
        "lost_share": missing if kind == "lossy" else 0.0,
        "deadline_hits": int((calls.missing > 0).any(axis=0).sum()),
        "cpu_s_per_gb": float(calls.cpu_s.sum() / (size_bytes * count / 1e9)),
        "checked_calls": checked,
        "wrong": int(calls.wrong.sum()) if checked else None,
        "against_xla": None,
        "seconds_by_rank": calls.seconds.tolist(),
        "deadline_s": [float(d) for d in calls.deadline_s.max(axis=0)],
        "missing": [float(m) for m in calls.missing.mean(axis=0)],
    }


def _per_mille(values: np.ndarray, share: int) -> float:
    """Returns the quantile `share` / 1000 of the values, one of them."""
    return float(np.sort(values)[-(-len(values) * share // 1000) - 1])


def compare(ours: dict[str, Any], xla: Mapping[str, Any]) -> None:
    """Adds the ratios of our figures to those of `lax.psum`: ours / theirs."""
    names = {"p50": "p50_s", "p99": "p99_s", "p999": "p999_s", "max": "max_s"}
    names |= {"cpu_per_gb": "cpu_s_per_gb"}
    ratios = {ratio: ours[name] / xla[name] for ratio, name in names.items()}
    medians = [_medians_of_turns(of) for of in (ours, xla)]
    low, high = np.percentile(medians[0] / medians[1], [25, 75])
    ratios["p50_quartiles_of_turns"] = [float(low), float(high)]
    ours["against_xla"] = ratios


def _medians_of_turns(result: Mapping[str, Any]) -> np.ndarray:
    """Returns the median of each turn of calls."""
    seconds = np.max(result["seconds_by_rank"], axis=0)
    bounds = range(TURN_CALLS, len(seconds), TURN_CALLS)
    return np.array([np.median(turn) for turn in np.split(seconds, bounds)])


def heading(content: Mapping[str, Any]) -> str:
    """Returns the lines above the table: hosts and plan.

    Args:
      content: the object of the JSON.
    """
    hosts = {host["name"]: host for host in content["hosts"]}
    cores = "/".join(str(host["cores"]) for host in hosts.values())
    load = "/".join(f"{host['load_average']:.1f}" for host in hosts.values())
    return (
        f"jax_optireduce {content['version']}, JAX {content['jax']}: "
        f"{content['processes']} processes on {len(hosts)} "
        f"host{'s' * (len(hosts) > 1)}\n"
        f"cores {cores}, load average {load}\n"
        f"{content['dtype']}, {content['iterations']} calls after "
        f"{content['warm_up']}{', in place' if content['in_place'] else ''}"
    )


def table(results: Iterable[Mapping[str, Any]], *, heading: bool) -> rich.table.Table:
    """Returns rows of the table, of the same widths in every call.

    Args:
      results: entries of "results" in the JSON.
      heading: whether the titles of the columns precede the rows.
    """
    made = screen.table(
        *(f"{title}\n{unit}" for title, unit, _ in _COLUMNS),
        widths=tuple(width for _, _, width in _COLUMNS),
    )
    made.show_header = heading
    for result in results:
        ours = result["mode"] != XLA
        made.add_row(
            format_size(result["bytes"]),
            result["mode"],
            _short(1e3 * result["p50_s"]),
            _short(result["algbw_gb_s"]),
            _short(result["busbw_gb_s"]),
            *(_short(1e3 * result[name]) for name in ("p99_s", "p999_s", "max_s")),
            _percent(result["late_share"] + result["lost_share"]) if ours else "-",
            _count(result["deadline_hits"]) if ours else "-",
            _short(result["cpu_s_per_gb"]),
            "-" if result["wrong"] is None else _count(result["wrong"]),
        )
    return made


def ratios(results: Iterable[Mapping[str, Any]]) -> rich.table.Table:
    """Returns the table of the ratios to `lax.psum`.

    Args:
      results: entries of "results" in the JSON; those of `XLA` are left out.
    """
    made = screen.table(
        *("size", "mode", "P50", "quartiles", "P99", "P99.9", "max", "CPU")
    )
    for result in results:
        if found := result["against_xla"]:
            low, high = found["p50_quartiles_of_turns"]
            names = ("p99", "p999", "max", "cpu_per_gb")
            made.add_row(
                format_size(result["bytes"]),
                result["mode"],
                _short(found["p50"], decimals=2),
                f"{_short(low, decimals=2)} - {_short(high, decimals=2)}",
                *(_short(found[name], decimals=2) for name in names),
            )
    return made


def _percent(share: float) -> str:
    """Writes a share in percent, in at most five characters; "0" is exactly 0."""
    percent = 100 * share
    if percent == 0:
        return "0"
    if percent < 0.01:
        return "<0.01"
    return f"{percent:.2f}" if percent < 10 else f"{percent:.1f}"


def _short(value: float, decimals: int = 3) -> str:
    """Writes a number in at most five characters, to that many decimals at most."""
    for unit in ("", "k", "M", "G"):
        for places in range(decimals, -1, -1):
            text = f"{value:.{places}f}{unit}"
            if len(text) <= 5:
                return text
        value /= 1e3
    return "huge"


def _count(number: int) -> str:
    """Writes a whole number in at most five characters."""
    return str(number) if number < 100_000 else _short(number)
