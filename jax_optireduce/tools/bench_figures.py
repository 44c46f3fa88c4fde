"""Figures, ratios and table lines of `bench`, from the times of calls."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_optireduce import _call
from jax_optireduce.tools.bench_rank import TURN_CALLS, XLA, Calls

# Version of the JSON, for programs that read it.
SCHEMA = 1

# Source: the options of nccl-tests, in which 1K is 1,024 bytes.
# Ascending.
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# Names of dtypes in XLA.
_SHORT_DTYPES = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float64": "f64",
    "int32": "s32",
}

# Columns of the table: title, unit, width.
_COLUMNS = (
    ("size", "bytes", 6),
    ("count", "elements", 8),
    ("type", "", 4),
    ("mode", "", 7),
    ("P50", "ms", 6),
    ("algbw", "GB/s", 6),
    ("busbw", "GB/s", 6),
    ("P99", "ms", 6),
    ("P99.9", "ms", 6),
    ("max", "ms", 6),
    ("late", "%", 5),
    ("lost", "%", 5),
    ("hits", "", 4),
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


def sizes(
    low_bytes: int, high_bytes: int, factor: float | None, step_bytes: int | None
) -> list[int]:
    """Returns the sizes from the lowest to the highest, in bytes.

    Args:
      low_bytes: the first size.
      high_bytes: upper bound of the sizes.
      factor: ratio of consecutive sizes, above 1.
      step_bytes: difference of consecutive sizes, instead of the factor.
    """
    found, size = [], low_bytes
    while size <= high_bytes:
        found.append(size)
        size = size + step_bytes if step_bytes else max(size + 1, int(size * factor))
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
        "late_share": missing if kind in _call.DEFERRING_MODES else 0.0,
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
    """Returns the head of the table: hosts, plan and columns.

    Args:
      content: the object of the JSON.
    """
    hosts = {host["name"]: host for host in content["hosts"]}
    cores = "/".join(str(host["cores"]) for host in hosts.values())
    load = "/".join(f"{host['load_average']:.1f}" for host in hosts.values())
    rounded = content["wire_format"] != "float32"
    wire_format = f", float32 as {content['wire_format']}" if rounded else ""
    titles = _placed({i: title for i, (title, _, _) in enumerate(_COLUMNS)})
    units = _placed({i: unit for i, (_, unit, _) in enumerate(_COLUMNS)})
    return (
        f"jax_optireduce {content['version']}, JAX {content['jax']}: "
        f"{content['processes']} processes on {len(hosts)} "
        f"host{'s' * (len(hosts) > 1)}, cores {cores}, load average {load}\n"
        f"{content['iterations']} calls after {content['warm_up']}, "
        f"{content['leaves']} lea{'ves' if content['leaves'] > 1 else 'f'} each"
        f"{', in place' if content['in_place'] else ''}{wire_format}\n"
        f"{titles}\n{units.rstrip()}"
    )


def line(result: Mapping[str, Any]) -> str:
    """Returns a line of the table, and a line of the ratios to xla, if any."""
    ours = result["mode"] != XLA
    cells = [
        format_size(result["bytes"]),
        str(result["elements"]),
        _SHORT_DTYPES[result["dtype"]],
        result["mode"],
        _short(1e3 * result["p50_s"]),
        _short(result["algbw_gb_s"]),
        _short(result["busbw_gb_s"]),
        *(_short(1e3 * result[name]) for name in ("p99_s", "p999_s", "max_s")),
        *(_percent(result[n]) if ours else "-" for n in ("late_share", "lost_share")),
        str(result["deadline_hits"]) if ours else "-",
        _short(result["cpu_s_per_gb"]),
        "-" if result["wrong"] is None else str(result["wrong"]),
    ]
    lines = [_placed(dict(enumerate(cells)))]
    if ratios := result["against_xla"]:
        low, high = ratios["p50_quartiles_of_turns"]
        places = {"P50": "p50", "P99": "p99", "P99.9": "p999", "max": "max"}
        places |= {"CPU": "cpu_per_gb"}
        named = {title: f"{ratios[name]:.2f}x" for title, name in places.items()}
        # In place of the bandwidths, whose ratios are those of P50.
        named |= {"mode": "/ xla", "busbw": f"({low:.2f}-{high:.2f})"}
        titles = [title for title, _, _ in _COLUMNS]
        found = {i: named[title] for i, title in enumerate(titles) if title in named}
        lines.append(_placed(found))
    return "\n".join(lines)


def _placed(cells: Mapping[int, str]) -> str:
    """Returns a line with right-aligned cells."""
    text, end = "", -1
    for column, (_, _, width) in enumerate(_COLUMNS):
        end += 1 + width
        if column in cells:
            text = f"{text} {cells[column]:>{end - len(text)}}"
    return text[1:]


def _percent(share: float) -> str:
    """Writes a share in percent, in at most five characters; "0" is exactly 0."""
    percent = 100 * share
    if percent == 0:
        return "0"
    if percent < 0.01:
        return "<0.01"
    return f"{percent:.2f}" if percent < 10 else f"{percent:.1f}"


def _short(value: float) -> str:
    """Writes a number in at most five characters, to three decimals."""
    for unit in ("", "k", "M", "G"):
        for decimals in (3, 2, 1, 0):
            text = f"{value:.{decimals}f}{unit}"
            if len(text) <= 5:
                return text
        value /= 1e3
    return "huge"
