"""Checks of the arguments and the place of a collective, during its trace.

Each function returns its argument in one form, or raises an error with the correction.
"""

import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jax_optireduce import _native
from jax_optireduce._errors import AxisError, UsageError, did_you_mean
from jax_optireduce._jax import shard_types
from jax_optireduce._program import allreduce, identity, leaf_specs
from jax_optireduce._program.call import (
    MODES,
    REPLICAS,
    WIRE_FORMATS,
    AxisName,
    Call,
    CallArguments,
    StageArguments,
)
from jax_optireduce._session import communicator

_FLOATS = ("float32", "bfloat16", "float16", "float64")
SUPPORTED = (*_FLOATS, "int32", "bool")

# Modes of functions without `mode=`; of the others "bounded".
_DEFAULT_MODES = {"psum": "exact", "pmean": "exact", "psum_scatter": "exact"}

# Functions whose shapes do not depend on the number of ranks.
_OVER_REPLICAS = (
    "psum",
    "pmean",
    "average_gradients",
    "optax_average_gradients",
    "sync_in_backward",
    "drain",
    "resync",
    "begin",
    "end",
)

# Functions that reduce any value, not gradients alone.
_OF_VALUES = tuple(_DEFAULT_MODES)


def checked_call(
    kind: str,
    axis_name: AxisName,
    key: str,
    mode: str | None,
    wire_format: str = "float32",
    fast_axis: AxisName | None = None,
    **more: Any,
) -> Call:
    """Returns the description of a call.

    Args:
      kind: the public function.
      axis_name: as given to it.
      key: see `checked_key`.
      mode: as given to it; None: the session's, or the default of the function.
      wire_format: as given to it.
      fast_axis: as given to it.
      **more: fields of `Call` that are not checked.

    Raises:
      NotInitializedError: `init` was not called.
      UsageError: the mode, the wire format or an axis is invalid.
    """
    mode = resolved_mode(mode, kind)
    check_wire_format(wire_format)
    axes = checked_axes(axis_name, kind)
    return Call(
        kind=kind,
        key=key,
        axes=axes,
        fast=_checked_fast_axes(fast_axis, axes, kind),
        mode=mode,
        wire_format=wire_format,
        **more,
    )


def call_of(
    kind: str,
    axis_name: AxisName,
    arguments: StageArguments,
    known: type[StageArguments] = CallArguments,
    **more: Any,
) -> Call:
    """Returns the description of a call with the keyword arguments of a function.

    Args:
      kind: the public function.
      axis_name: as given to it.
      arguments: as given to it.
      known: their names.
      **more: as of `checked_call`.

    Raises:
      TypeError: an argument has another name.
      NotInitializedError: see `checked_call`.
      UsageError: see `checked_call`.
    """
    names = known.__annotations__
    for name in arguments:
        if name not in names:
            raise TypeError(
                f"{kind} got an unexpected keyword argument {name!r}."
                + did_you_mean(name, names)
            )
    given: dict[str, Any] = {**arguments}
    return checked_call(
        kind,
        axis_name,
        checked_key(given.get("name"), kind),
        given.get("mode"),
        given.get("wire_format", "float32"),
        given.get("fast_axis"),
        **more,
    )


def resolved_mode(mode: str | None, kind: str) -> str:
    """Returns the given mode, that of the session, or the default of the function.

    Raises:
      NotInitializedError: `init` was not called.
      UsageError: the mode is invalid.
    """
    options = communicator.current(kind).options
    if mode is None:
        mode = options.mode or _DEFAULT_MODES.get(kind, "bounded")
    check_mode(mode)
    return mode


def checked_key(name: str | None, kind: str) -> str:
    """Returns the given name, or a name from the line of the user's code.

    Raises:
      UsageError: the name is not a printable string, or too long.
    """
    if name is None:
        return identity.call_site_key(kind)
    printable = isinstance(name, str) and name.isprintable()
    if not printable or not 1 <= len(name.encode()) <= _native.NAME_BYTES_MAX:
        raise UsageError(
            f"name must be printable characters, 1 to {_native.NAME_BYTES_MAX} bytes "
            f"in UTF-8, got {name!r}; or leave it out."
        )
    return name


def check_mode(mode: str) -> None:
    """Raises `UsageError` unless `mode` is a mode."""
    check_choice("mode", mode, MODES)


def check_wire_format(wire_format: str) -> None:
    """Raises `UsageError` unless `wire_format` is a wire format."""
    check_choice("wire_format", wire_format, WIRE_FORMATS)


def check_choice(argument: str, value: Any, known: Sequence[str]) -> None:
    if value in known:
        return
    quoted = [repr(name) for name in known]
    raise UsageError(
        f"{argument} must be {', '.join(quoted[:-1])} or {quoted[-1]}, got {value!r}."
        + (did_you_mean(value, known) if isinstance(value, str) else "")
    )


def checked_step(step: Any) -> jax.Array | None:
    """Returns the step as int32 [], or None.

    Raises:
      UsageError: it is not a whole number, not a scalar, or negative.
    """
    if step is None:
        return None
    is_array = hasattr(step, "dtype")
    whole = (
        np.issubdtype(step.dtype, np.integer)
        if is_array
        else isinstance(step, int) and not isinstance(step, bool)
    )
    if not whole or np.ndim(step) != 0:
        raise UsageError(
            "step must be one whole number (int32 [] or int), such as the optimizer's "
            f"count, got {step!r}."
        )
    known = not isinstance(step, Tracer)
    if known and not 0 <= int(step) < 2**31:
        raise UsageError(
            f"step must be from 0 to 2**31 - 1, got {int(step)}; leave it out to have "
            "the calls counted."
        )
    return jnp.asarray(step).astype(jnp.int32)


def checked_axes(axis_name: AxisName, kind: str) -> tuple[Any, ...]:
    """Returns the axes as a tuple.

    Raises:
      AxisError: an axis is not mapped here.
      UsageError: an axis is given twice.
    """
    axes = axes_of(axis_name)
    if not axes or len(set(axes)) != len(axes):
        raise UsageError(
            f"{kind} needs an axis name or a tuple of different ones, got "
            f"{axis_name!r}."
        )
    mesh = shard_types.mesh_axes()
    mapped = [name for name, (_, manual) in mesh.items() if manual]
    for axis in axes:
        if axis == REPLICAS:
            _check_replicas(kind)
        elif not _is_mapped(axis):
            raise AxisError(_unknown_axis(axis, kind, mapped))
    return axes


def _check_replicas(kind: str) -> None:
    """Raises unless a call of this kind can be over all replicas."""
    if not communicator.current(kind).options.replica:
        raise AxisError(
            f"{kind} over REPLICAS, but this process is no replica: give it a name, "
            "jax_optireduce.init(replica='a', coordinator='host:port'), or write the "
            "axis of the mesh."
        )
    if kind not in _OVER_REPLICAS:
        raise UsageError(
            f"{kind} has a part or a row for each rank, and the number of replicas may "
            "change between two calls of one program. Write psum, pmean or "
            "average_gradients over REPLICAS."
        )


def _checked_fast_axes(
    fast_axis: AxisName | None, axes: tuple[Any, ...], kind: str
) -> tuple[Any, ...]:
    """Returns `fast_axis` as a tuple of axes of the call.

    Raises:
      UsageError: it is none of them, all of them, or not of a mesh of manual axes.
    """
    if fast_axis is None:
        return ()
    fast = axes_of(fast_axis)
    of_mesh = allreduce.mapped_axes(axes)
    for axis in fast:
        if axis not in axes:
            raise UsageError(
                f"{kind} got fast_axis={axis!r}, which is not among the axes of the "
                f"call, {axes}. Write both: {kind}(x, {(*axes, axis)}, "
                f"fast_axis={axis!r})."
            )
        if axis not in of_mesh:
            raise UsageError(
                f"{kind} got fast_axis={axis!r}, the axis of a jax.vmap; it must be an "
                "axis of the mesh. A jax.vmap axis is summed on the device anyway."
            )
    if not fast or set(fast) == set(axes):
        raise UsageError(
            f"{kind} got fast_axis={fast_axis!r}, which must be some of the axes "
            f"{axes}, and leave one for the slow network. Use jax.lax for a sum over a "
            "fast network alone."
        )
    automatic = leaf_specs.automatic_axes()
    if automatic:
        raise UsageError(
            f"{kind} takes fast_axis where all axes are manual; here the "
            f"compiler shards {', '.join(automatic)}. Leave the fast axis to the "
            "compiler as well, with jax.shard_map(..., axis_names={slow axis}), and "
            "give specs= instead."
        )
    return fast


def axes_of(axis_name: AxisName) -> tuple[Any, ...]:
    """Returns the axes as a tuple."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def _is_mapped(axis: Any) -> bool:
    # For JAX an int is the position of an axis of an array, which has no name.
    if isinstance(axis, int):
        return False
    try:
        lax.axis_size(axis)
    except NameError:
        return False
    return True


def _unknown_axis(axis: Any, kind: str, mapped: Sequence[str]) -> str:
    if isinstance(axis, int):
        return (
            f"{kind} sums over named axes, got the position {axis}; use x.sum({axis}) "
            "for an axis of the array itself."
        )
    if shard_types.UNNAMED_PMAP_AXIS in mapped:
        name = axis if isinstance(axis, str) else "data"
        return (
            f"{kind} over axis {axis!r}, but the axis of this jax.pmap has no name. "
            f"Write jax.pmap(f, axis_name={name!r}) and {kind}(x, {name!r})."
        )
    if not mapped:
        return (
            f"{kind} over axis {axis!r}, but no axis of a mesh is mapped here. Call it "
            "inside jax.shard_map(f, mesh=..., in_specs=..., out_specs=...), which may "
            "be inside jax.jit, or inside jax.pmap(f, axis_name=...) or "
            "jax.vmap(f, axis_name=...)."
        )
    names = [str(name) for name in mapped]
    return (
        f"{kind} over axis {axis!r}, which is not mapped here; mapped are: "
        f"{', '.join(names)}.{did_you_mean(str(axis), names)}"
    )


def check_no_groups(axis_index_groups: None, kind: str) -> None:
    """Raises `UsageError` if groups of indices are given."""
    if axis_index_groups is None:
        return
    raise UsageError(
        f"{kind} takes no axis_index_groups. Make the groups an axis of the mesh, "
        "jax.make_mesh((groups, ranks), ('group', 'rank')), put both names into the "
        f"specs of jax.shard_map, and write {kind}(x, 'rank')."
    )


def named_leaves(tree: Any, kind: str) -> tuple[list[tuple[str, Any]], Any]:
    """Returns the leaves with their names for messages, and the structure."""
    found, treedef = jax.tree_util.tree_flatten_with_path(tree)
    named = [
        (f"{kind} of leaf {jax.tree_util.keystr(path) or '(the argument)'}", leaf)
        for path, leaf in found
    ]
    return named, treedef


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array or a number."""
    kinds = (jax.Array, np.ndarray, np.generic, numbers.Number)
    return isinstance(leaf, kinds)


def is_reducible(leaf: Any, call: Call) -> bool:
    """Whether the call can reduce a leaf of this type."""
    if not hasattr(leaf, "dtype") or str(leaf.dtype) not in SUPPORTED:
        return False
    exact_integers = call.mode != "lossy" and call.wire_format == "float32"
    return str(leaf.dtype) in _FLOATS or exact_integers


def checked_leaf(leaf: Any, place: str, call: Call) -> jax.Array:
    """Returns a traced leaf in the dtype of its sum: booleans are counted, in int32.

    Raises:
      UsageError: it cannot be reduced.
    """
    _check_dtype(leaf.dtype, place)
    _check_rounding(leaf, place, call)
    floating = str(leaf.dtype) in _FLOATS
    if call.mode == "lossy" and not floating:
        raise UsageError(
            f"{place} is {leaf.dtype}, whose sums mode 'lossy' cannot rescale; "
            "write x.astype(jnp.float32), or reduce it in a call of its own with "
            "mode='exact' or mode='bounded'."
        )
    if call.present and not floating:
        leaf = leaf.astype(jnp.float32)
    elif leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.int32)
    fixed = allreduce.fixed_axes(leaf, call.axes)
    if fixed and floating:
        raise UsageError(_invariant(place, fixed, call))
    # No gradient is an integer, so an invariant integer is valid.
    return allreduce.made_varying(leaf, call.axes)


def _check_rounding(leaf: jax.Array, place: str, call: Call) -> None:
    """Raises `UsageError` if the wire format cannot round the leaf."""
    if call.wire_format == "float32":
        return
    if call.present:
        raise UsageError(
            f"{place} got wire_format='{call.wire_format}' for gradients, and the mean "
            "of other values in mode 'bounded' is not rounded. Write average_gradients "
            "for gradients, or leave wire_format out."
        )
    if leaf.dtype != jnp.float32:
        raise UsageError(
            f"{place} is {leaf.dtype}, and wire_format='{call.wire_format}' rounds "
            "float32 values only; leave wire_format out for it, or write "
            "x.astype(jnp.float32)."
        )


def _invariant(place: str, axes: Sequence[str], call: Call) -> str:
    quoted = ", ".join(map(repr, axes))
    varying = f"jax.lax.pcast({{}}, ({quoted},), to='varying')"
    same = f"{place} does not vary over {quoted}"
    sync = "params = sync_in_backward(params, axis) before the loss"
    if call.kind in _OF_VALUES:
        return (
            f"{same}, so all ranks have the same value, such as a constant or the "
            "result of a collective, and no call is needed. If it is the gradient of "
            f"replicated parameters, which JAX has added up already, write {sync}. If "
            "its copies are to be reduced, as by jax.lax.psum, which multiplies it by "
            f"the number of ranks, write {call.kind}({varying.format('x')}, axis)."
        )
    return (
        f"{same}, so it is reduced already: under check_vma=True, JAX sums the "
        "gradient of replicated parameters by itself, over its own transport, and a "
        f"second sum would multiply it. Write {sync}; or params = "
        f"{varying.format('params')} before jax.grad; or check_vma=False in "
        "jax.shard_map."
    )


def _check_dtype(dtype: Any, place: str) -> None:
    if str(dtype) in SUPPORTED:
        return
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise UsageError(
            f"{place} is a key of jax.random ({dtype}), which cannot be added up; "
            "leave this leaf out of the tree. resync accepts it, and keeps each "
            "rank's own."
        )
    if dtype == jax.dtypes.float0:
        raise UsageError(
            f"{place} is float0, the dtype of the gradient of an integer, which has no "
            "values; leave this leaf out of the tree."
        )
    if jnp.issubdtype(dtype, jnp.complexfloating):
        advice = "the real and the imaginary part as two leaves"
    else:
        advice = "x.astype(jnp.int32) or x.astype(jnp.float32)"
    raise UsageError(
        f"{place} is {dtype}, which is not supported; supported are "
        f"{', '.join(SUPPORTED)}. Write {advice}."
    )


def checked_constant(leaf: Any, place: str) -> Any:
    """Returns a leaf other than a tracer, as a number or an array."""
    if isinstance(leaf, bool):
        leaf = np.bool_(leaf)
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        _check_dtype(leaf.dtype, place)
        return jnp.asarray(leaf, jnp.int32) if leaf.dtype == jnp.bool_ else leaf
    if isinstance(leaf, numbers.Real):
        return leaf
    raise UsageError(
        f"{place} must be an array or a number, got {leaf!r} of type "
        f"{type(leaf).__name__}."
    )
