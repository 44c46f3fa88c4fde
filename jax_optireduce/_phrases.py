"""Ranks, calls, sizes and times as the texts for a user name them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any


def ranks(numbers: Collection[int]) -> str:
    """Returns "rank 2", "ranks 0 and 1" or "ranks 0, 1 and 3"."""
    return _named("rank", map(str, sorted(numbers)))


def replicas(names: Collection[str]) -> str:
    """Returns "replica 'a'" or "replicas 'a' and 'b'"."""
    return _named("replica", map(repr, sorted(names)))


def _named(kind: str, names: Iterable[str]) -> str:
    *most, last = names
    return f"{kind}s {', '.join(most)} and {last}" if most else f"{kind} {last}"


def call(identity: Mapping[str, Any]) -> str:
    """Returns "call 812 of 'grads'" for a record of a call."""
    return f"call {identity['sequence']} of {identity['collective']!r}"


def size(number: int) -> str:
    """Returns a number of bytes with its unit."""
    for unit_bytes, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= unit_bytes:
            return f"{number / unit_bytes:.1f}".removesuffix(".0") + f" {unit}"
    return f"{number} bytes"


def seconds(duration_s: float) -> str:
    """Returns a duration with its unit."""
    if duration_s < 1e-3:
        return f"{duration_s * 1e6:.0f} us"
    return f"{duration_s * 1e3:.0f} ms" if duration_s < 1 else f"{duration_s:.1f} s"
