"""Names of collectives: what makes a call on one rank the same call as on another.

A key must be the same on every rank and in every trace of the same program, so it comes
from the user's `name`, or else from the place in the user's code, never from a counter
of traces. Two calls from one place are told apart when their module is lowered, by
their order in it, which is the same on every rank because the program is.
"""

import hashlib
import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

# As strings, because this is done for every frame of every traced call.
_OWN_DIRECTORY = str(Path(__file__).parent) + os.sep
# Longest name in bytes; what is longer ends with a hash instead.
# Chosen: the wire format takes 200, and the native side adds the group.
_NAME_BYTES_MAX = 150

_JAX_DIRECTORY = str(Path(jax.__file__).parent) + os.sep


def call_site_key(kind: str) -> str:
    """Names the place in the user's code that called into this package.

    Directories are left out, because ranks may have installed the program in different
    ones, and so are the frames above the outermost frame of JAX, because how a rank
    came to trace the program (training, warm-up, a debugger) does not change what it
    is.

    Args:
      kind: which of our functions was called.

    Returns:
      "<file>:<line>(<hash of the frames that led there>) <kind>".
    """
    places: list[str] = []
    kept = 0
    frame = inspect.currentframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_JAX_DIRECTORY):
            kept = len(places)
        elif not path.startswith(_OWN_DIRECTORY):
            places.append(f"{Path(path).name}:{frame.f_lineno}")
        frame = frame.f_back
    places = places[: max(kept, 1)]
    # Chosen: 16 bits. The place and the order in the module do most of the telling
    # apart.
    digest = hashlib.sha256("\n".join(places).encode()).hexdigest()[:4]
    return f"{places[0]}({digest}) {kind}"


def numbered(key: str, ordinal: int) -> str:
    """Tells apart the calls with one key in one program, by their order in it."""
    return f"{key} #{ordinal}" if ordinal else key


def collective_name(key: str, devices: np.ndarray) -> str:
    """Names one call of a program, for all that take part in it and for nobody else.

    Args:
      key: from the user or `call_site_key`, with its role under differentiation and its
        number in the program.
      devices: ids of the devices [groups, ranks]. One place in the code may run on
        several meshes, whose calls are counted separately and may be under way
        together.
    """
    layout = repr((devices.shape, devices.tolist()))
    digest = hashlib.sha256(layout.encode()).hexdigest()[:6]
    name = f"{key} mesh={digest}"
    if len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    whole = hashlib.sha256(name.encode()).hexdigest()[:16]
    head = name.encode()[: _NAME_BYTES_MAX - 20].decode(errors="ignore")
    return f"{head}... {whole}"


def describe(
    name: str,
    avals: Sequence[Any],
    *,
    mode: str,
    wire_format: str,
    group_size: int,
    rotated: bool,
) -> str:
    """Describes a call for error messages: name, dtype, shapes, mode, group."""
    # Chosen: as many leaves as fit on a line; the fingerprint covers all of them.
    shown = ", ".join(str(list(aval.shape)).replace(" ", "") for aval in avals[:3])
    if len(avals) > 3:
        elements = sum(aval.size for aval in avals)
        shown += f" and {len(avals) - 3} more, {elements} elements"
    as_format = f", as {wire_format}" if wire_format != "float32" else ""
    return (
        f"'{name}' ({avals[0].dtype}{shown}, mode {mode}{as_format}"
        f"{', rotated' if rotated else ''}, {group_size} ranks)"
    )


def fingerprint(
    avals: Sequence[Any],
    *,
    mode: str,
    wire_format: str,
    group_size: int,
    rotated: bool,
) -> int:
    """Hashes what ranks must agree on, into the range of a signed 64-bit integer."""
    shapes = [(str(aval.dtype), tuple(aval.shape)) for aval in avals]
    text = repr((shapes, mode, wire_format, group_size, rotated, "sum"))
    return hash64(text)


def hash64(text: str) -> int:
    """Hashes text, equally in every process, into a signed 64-bit integer."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)
