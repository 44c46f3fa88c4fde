"""Names of collectives: the identity of a call across ranks.

A key must be the same on every rank and in every trace of a program, so it is the
user's `name`, or else derived from the line of the call in the user's code, never from
a counter of traces. The lowering of a module distinguishes calls with one key by their
order in the module, which is the same on every rank because the program is.

The key excludes the callers of that line. JAX caches the traces of inner functions
(jit, checkpoint, scan, cond), so a rank with an earlier trace of such a function, from
another place, does not execute the line again; and a decorator on one rank is an
additional caller.
"""

import hashlib
import inspect
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax_optireduce import _native, _phrases
from jax_optireduce._program.call import Call

_OWN_DIRECTORY = str(Path(__file__).parents[1]) + os.sep
_JAX_DIRECTORY = str(Path(jax.__file__).parent) + os.sep
# The file name of a cell of a notebook or a prompt contains the count of cells.
# Source: IPython, core/compilerop.py ("<ipython-input-7-0f3a...>", the end is a hash of
# the cell); CPython 3.13, _pyrepl ("<python-input-7>").
_COUNT_OF_CELLS = re.compile(r"^(<?i?python-input)-\d+(?=[->])")


def call_site_key(kind: str) -> str:
    """Names the line of the user's code that called this package.

    The name excludes directories, because ranks may have installed the program in
    different ones, and the number of a notebook's cell. No such line exists if JAX
    itself makes the call, as in `jax.jit(functools.partial(psum, axis_name="data"))`.

    Args:
      kind: the public function of the call.

    Returns:
      "<file>:<line> <kind>", or "<kind> called by JAX".
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_DIRECTORY):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_JAX_DIRECTORY):
        return f"{kind} called by JAX"
    file = _COUNT_OF_CELLS.sub(r"\1", Path(frame.f_code.co_filename).name)
    return f"{file}:{frame.f_lineno} {kind}"


def numbered(key: str, ordinal: int) -> str:
    """Numbers the calls with one key in one program, by their order in it."""
    return f"{key} #{ordinal}" if ordinal else key


def collective_name(key: str, devices: np.ndarray) -> str:
    """Names one call of a program, uniquely for its participants.

    A name above `NAME_BYTES_MAX` is cut, and ends with a hash.

    Args:
      key: the key of the call, with its suffixes for differentiation and for its number
        in the program.
      devices: ids of the devices [groups, ranks]. One line of code may run on several
        meshes, whose calls are counted separately and may be concurrent.
    """
    layout = repr((devices.shape, devices.tolist()))
    digest = hashlib.sha256(layout.encode()).hexdigest()[:6]
    name = f"{key} mesh={digest}"
    if len(name.encode()) <= _native.NAME_BYTES_MAX:
        return name
    end = "... " + hashlib.sha256(name.encode()).hexdigest()[:16]
    head = name.encode()[: _native.NAME_BYTES_MAX - len(end)]
    return head.decode(errors="ignore") + end


# The operations of collectives with one stage, as messages name them.
_OPERATIONS = {
    "allreduce": "",
    "reduce_scatter": "psum_scatter of ",
    "all_gather": "all_gather of ",
}


def describe(name: str, avals: Sequence[Any], call: Call, group_size: int) -> str:
    """Describes a call for error messages: name, dtype, shapes, mode, group."""
    # Chosen: the leaves that fit on a line; the fingerprint covers all leaves.
    shown = ", ".join(str(list(aval.shape)).replace(" ", "") for aval in avals[:3])
    if len(avals) > 3:
        elements = sum(aval.size for aval in avals)
        shown += f" and {len(avals) - 3} more, {elements} elements"
    wire_format = call.wire_format
    as_format = f", as {wire_format}" if wire_format != "float32" else ""
    operation = "pmean of " if call.present else _OPERATIONS[call.operation]
    return (
        f"'{name}' ({operation}{avals[0].dtype}{shown}, mode "
        f"{call.mode}{as_format}{', rotated' if call.rotated else ''}, {group_size} "
        "ranks)"
    )


def title(attributes: Mapping[str, Any], leaves: Sequence[Any]) -> str:
    """Titles a call for profilers, such as "optireduce grads bounded 25 MiB".

    Args:
      attributes: of the handler.
      leaves: arrays or types, as given to the handler.
    """
    operation = attributes["operation"]
    words = [] if operation == "allreduce" else [operation]
    words += ["drain"] if attributes["drain"] else []
    size = _phrases.size(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))
    return " ".join(["optireduce", *words, attributes["key"], attributes["mode"], size])


def fingerprint(avals: Sequence[Any], call: Call, devices: np.ndarray) -> int:
    """Hashes the properties on which ranks must agree, into a signed 64-bit integer.

    Together with the key it identifies the calls that a drain matches, see `drain`.
    """
    shapes = [(str(aval.dtype), tuple(aval.shape)) for aval in avals]
    how = (call.mode, call.wire_format, devices.tolist(), call.rotated, call.operation)
    quorum = (call.clusters, call.spare) if call.clusters else ()
    present = ("present",) if call.present else ()
    return hash64(repr((shapes, *how, *quorum, *present)))


def hash64(text: str) -> int:
    """Hashes text, equally in every process, into a signed 64-bit integer."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)
