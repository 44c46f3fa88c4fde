"""`psum_scatter` and `all_gather`: the two stages of an allreduce, one at a time."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_optireduce._argument_types import Tree
from jax_optireduce._calls.collectives import ReducedBucket, Reduction
from jax_optireduce._errors import UsageError
from jax_optireduce._program import (
    allreduce,
    blocks,
    bucketing,
    checks,
    leaf_specs,
    stage_primitives,
)
from jax_optireduce._program.call import AxisName, Call, StageArguments
from jax_optireduce._session import communicator
from jax_optireduce._stats import CollectiveStats

# A scattered sum has one owner, so the two modes are one.
_SCATTERED_MODES = {"agreed": "bounded"}


class _ScatterArguments(StageArguments, total=False):
    scatter_dimension: int
    axis_index_groups: None
    tiled: bool


class _GatherArguments(StageArguments, total=False):
    axis_index_groups: None
    axis: int
    tiled: bool
    to: Literal["varying", "invarying"]


@overload
def psum_scatter(
    x: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[False] = False,
    **arguments: Unpack[_ScatterArguments],
) -> Tree: ...
@overload
def psum_scatter(
    x: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[True],
    **arguments: Unpack[_ScatterArguments],
) -> tuple[Tree, CollectiveStats]: ...
def psum_scatter(
    x: Any,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: None = None,
    tiled: bool = False,
    return_stats: bool = False,
    **arguments: Unpack[StageArguments],
) -> Any:
    """Sums every leaf over a mapped axis; each rank gets its part of the sum.

    The first stage of an allreduce, with half of its bytes, as
    `jax.lax.psum_scatter`: for gradients whose optimizer state is sharded over the
    axis (ZeRO). `all_gather` is the second one.

    Call it inside `jax.shard_map` with all axes manual, inside `jax.pmap`, or over the
    axis of a named `jax.vmap`. Its transpose is `all_gather` in mode "exact".

    Differs from `jax.lax.psum_scatter` in:

    * Contributions are added in the order of the ranks, in float32 for bfloat16 and
      float16, so the last bits may differ.
    * A floating value that does not vary over the axis (check_vma=True) is an error,
      see `psum`. Complex numbers and integers other than int32 are errors, and bool
      is counted in int32.
    * Every process has the same number of devices of the axis.
    * Axes that the compiler shards by itself (`axis_names=` of `jax.shard_map`) are an
      error. Groups of indices are an axis of the mesh.
    * In modes other than "exact" a sum may lack late data; `return_stats=True` reports
      its share.

    Args:
      x: a tree of arrays; see `psum` for their dtypes.
      axis_name: a mapped axis or a tuple of them.
      scatter_dimension: the dimension of each leaf that is divided over the ranks.
      axis_index_groups: None, the default of `jax.lax.psum_scatter`.
      tiled: False: the dimension has the size of the axis, and the result lacks it.
        True: the size of the dimension is a multiple of that of the axis, and the
        result keeps it, divided by the size of the axis.
      return_stats: whether to return the statistics of the call as well.
      **arguments: see `CallArguments`. Modes "bounded" and "agreed" are one here, since
        a part has one owner: the call ends by its deadline, and adds late data to a
        later call, see `drain`. A dead rank is an error in both, as the other ranks
        have no place for its part. With three or more processes calls go on without
        a late process, which makes every call that it has missed. A deadline is that
        of the whole call.

    Returns:
      The same tree; the leaves as `tiled` says. With `return_stats` the pair of it and
      this rank's `CollectiveStats`.

    Raises:
      AxisError: the axis is not mapped here.
      UsageError: a leaf, its shape, the mode, the step, or the place in the program is
        invalid.
      NotInitializedError: `jax_optireduce.init` was not called.
    """
    kind = "psum_scatter"
    checks.check_no_groups(axis_index_groups, kind)
    call = checks.call_of(kind, axis_name, arguments, StageArguments, mean=False)
    step = arguments.get("step")
    parts = scatter_tree(x, step, scattering(call), scatter_dimension, tiled)
    return parts.result(return_stats)


def scattering(call: Call) -> Call:
    """Returns the call with the first stage alone."""
    mode = _SCATTERED_MODES.get(call.mode, call.mode)
    return dataclasses.replace(call, operation="reduce_scatter", mode=mode)


def scatter_tree(
    tree: Any, step: Any, call: Call, scatter_dimension: int, tiled: bool
) -> Reduction:
    """Sums a tree and scatters the sums, in buckets; see `psum_scatter`."""
    options = communicator.current(call.kind).options
    step = checks.checked_step(step)
    _check_manual(call.kind)
    size = lax.axis_size(call.axes)
    named, treedef = checks.named_leaves(tree, call.kind)
    arrays = [
        checks.checked_leaf(jnp.asarray(leaf), place, call) for place, leaf in named
    ]
    dimensions = [_scattered(x, scatter_dimension, tiled, size) for x in arrays]
    if options.backend == "xla":
        parts = [
            lax.psum_scatter(x, call.axes, scatter_dimension=dimension, tiled=tiled)
            for x, dimension in zip(arrays, dimensions, strict=True)
        ]
        return Reduction(treedef.unflatten(parts), [])
    rows = [
        _as_rows(x, dimension, tiled, size)
        for x, dimension in zip(arrays, dimensions, strict=True)
    ]
    rotated = call.mode == "lossy"
    send = functools.partial(stage_primitives.psum_scatter, step=step)
    scattered = _in_buckets(
        send,
        rows,
        bucketing.plan_buckets(
            [row.shape for row in rows],
            [row.dtype for row in rows],
            bucket_bytes=options.bucket_bytes,
        ),
        call=dataclasses.replace(call, rotated=rotated),
        empty=[jnp.zeros(row.shape[1:], row.dtype) for row in rows],
    )
    return scattered._replace(tree=treedef.unflatten(scattered.tree))


def _in_buckets(
    send: Callable[..., tuple[list[jax.Array], jax.Array]],
    leaves: Sequence[jax.Array],
    plan: Sequence[bucketing.Bucket],
    *,
    call: Call,
    empty: Sequence[jax.Array],
) -> Reduction:
    """Makes a call for each bucket; the tree of the result is a list.

    Args:
      send: the stage: (leaves, call=) to results and statistics vector.
      leaves: as the stage takes them.
      plan: the buckets.
      call: the description of the calls, without the suffix of a bucket.
      empty: the results of leaves without elements, which are in no bucket.
    """
    results, buckets = list(empty), []
    for bucket in plan:
        of_bucket = dataclasses.replace(call, key=call.key + bucket.suffix)
        parts, vector = send([leaves[i] for i in bucket.leaves], call=of_bucket)
        for i, part in zip(bucket.leaves, parts, strict=True):
            results[i] = part
        buckets.append(ReducedBucket(list(bucket.leaves), bucket.elements, vector))
    return Reduction(results, buckets)


@overload
def all_gather(
    x: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[False] = False,
    **arguments: Unpack[_GatherArguments],
) -> Tree: ...
@overload
def all_gather(
    x: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[True],
    **arguments: Unpack[_GatherArguments],
) -> tuple[Tree, CollectiveStats]: ...
def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: None = None,
    axis: int = 0,
    tiled: bool = False,
    to: Literal["varying", "invarying"] = "varying",
    return_stats: bool = False,
    **arguments: Unpack[StageArguments],
) -> Any:
    """Gathers the leaves of all ranks of a mapped axis.

    The second stage of an allreduce, with half of its bytes, as `jax.lax.all_gather`:
    for parameters whose parts were updated by their owners (ZeRO). It waits for every
    rank (mode "exact"), and a dead rank is an error after `Options.peer_timeout_s`.
    Values arrive with their bits, NaN and -0.0 included.

    Call it where `psum_scatter` works. Its transpose is `psum_scatter` in mode
    "exact".

    Differs from `jax.lax.all_gather` in:

    * Every process has the same number of devices of the axis.
    * Axes that the compiler shards by itself (`axis_names=` of `jax.shard_map`) are an
      error. Groups of indices are an axis of the mesh. `to="reduced"` is an error.
    * Keys of `jax.random` and dtypes of less than 8 bits are errors.

    Args:
      x: a tree of arrays of any shape and dtype.
      axis_name: a mapped axis or a tuple of them.
      axis_index_groups: None, the default of `jax.lax.all_gather`.
      axis: the dimension of the result along which the leaves of the ranks lie.
      tiled: False: a new dimension, of the size of the axis. True: an existing one,
        along which the leaves are concatenated.
      to: the type of the result under check_vma=True: "varying" over the axis, or
        "invarying": equal on all ranks, as the result of `psum`.
      return_stats: whether to return the statistics of the call as well.
      **arguments: see `CallArguments`. `mode` is None or "exact": the other modes add
        late data to a later call, or scale partial sums, which is right for gradients
        and wrong for parameters; they are errors, and `Options.mode` has no effect.
        Values that `wire_format` rounds are the same on all ranks.

    Returns:
      The same tree; the leaves as `axis` and `tiled` say. With `return_stats` the pair
      of it and this rank's `CollectiveStats`.

    Raises:
      AxisError: the axis is not mapped here.
      UsageError: a leaf, an argument, the mode, the step, or the place in the program
        is invalid.
      NotInitializedError: `jax_optireduce.init` was not called.
    """
    kind = "all_gather"
    checks.check_no_groups(axis_index_groups, kind)
    _check_exact(arguments.get("mode"))
    if to not in ("varying", "invarying"):
        raise UsageError(f"{kind} needs to='varying' or to='invarying', got to={to!r}.")
    arguments["mode"] = "exact"
    call = checks.call_of(kind, axis_name, arguments, StageArguments, mean=False)
    call = dataclasses.replace(call, operation="all_gather")
    step = arguments.get("step")
    return _gather_tree(x, step, call, axis, tiled, to).result(return_stats)


def _gather_tree(
    tree: Any, step: Any, call: Call, axis: int, tiled: bool, to: str
) -> Reduction:
    options = communicator.current(call.kind).options
    step = checks.checked_step(step)
    _check_manual(call.kind)
    named, treedef = checks.named_leaves(tree, call.kind)
    arrays = [_gathered_leaf(jnp.asarray(leaf), place, call) for place, leaf in named]
    places = [_place(x, axis, tiled, call.kind) for x in arrays]
    if options.backend == "xla":
        gathered = [
            lax.all_gather(x, call.axes, axis=place, tiled=tiled, to=to)
            for x, place in zip(arrays, places, strict=True)
        ]
        return Reduction(treedef.unflatten(gathered), [])
    sent = [_without_complex(x) for x in arrays]
    size = lax.axis_size(call.axes)
    rounded = call.wire_format != "float32"
    plan = bucketing.plan_buckets(
        [(x.size if rounded else blocks.words_in(x), size) for x in sent],
        [np.dtype(np.float32)] * len(sent),  # It decides the size of a word.
        bucket_bytes=options.bucket_bytes,
    )
    varying = to == "varying"
    send = functools.partial(stage_primitives.all_gather, step=step, varying=varying)
    empty = [jnp.zeros((size, *x.shape), x.dtype) for x in sent]
    gathered = _in_buckets(send, sent, plan, call=call, empty=empty)
    whole = zip(gathered.tree, arrays, places, strict=True)
    placed = [_placed(_as_before(y, x), place, tiled) for y, x, place in whole]
    return gathered._replace(tree=treedef.unflatten(placed))


def _without_complex(x: jax.Array) -> jax.Array:
    """Returns complex numbers as pairs, other values unchanged."""
    return jnp.stack([x.real, x.imag], -1) if jnp.iscomplexobj(x) else x


def _as_before(sent: jax.Array, x: jax.Array) -> jax.Array:
    """Undoes `_without_complex(x)`."""
    return lax.complex(sent[..., 0], sent[..., 1]) if jnp.iscomplexobj(x) else sent


# --- Shapes --------------------------------------------------------------------------


def _scattered(x: jax.Array, dimension: int, tiled: bool, size: int) -> int:
    """Returns the dimension that is divided, not negative."""
    if not -x.ndim <= dimension < x.ndim:
        raise UsageError(
            f"psum_scatter got scatter_dimension={dimension}, but a leaf has the shape "
            f"{list(x.shape)}; choose one of its dimensions."
        )
    dimension %= x.ndim
    found = x.shape[dimension]
    if tiled and found % size:
        raise UsageError(
            f"psum_scatter needs dimension {dimension} of the shape {list(x.shape)} to "
            f"be divisible by the {size} ranks; pad the leaf, or choose another "
            "scatter_dimension."
        )
    if not tiled and found != size:
        raise UsageError(
            f"psum_scatter needs dimension {dimension} of the shape {list(x.shape)} to "
            f"have the size of the axis, {size}; to divide a larger one write "
            "tiled=True."
        )
    return dimension


def _as_rows(x: jax.Array, dimension: int, tiled: bool, size: int) -> jax.Array:
    """Returns `x` as [ranks, ...]."""
    if tiled:
        shape = list(x.shape)
        shape[dimension : dimension + 1] = [size, shape[dimension] // size]
        x = x.reshape(shape)
    return jnp.moveaxis(x, dimension, 0)


def _place(x: jax.Array, axis: int, tiled: bool, kind: str) -> int:
    """Returns the dimension of the ranks in the result, not negative."""
    dimensions = x.ndim if tiled else x.ndim + 1
    if not -dimensions <= axis < dimensions:
        raise UsageError(
            f"{kind} got axis={axis}, but a leaf has the shape {list(x.shape)}, and "
            f"its result {dimensions} dimensions; choose one of these."
        )
    return axis % dimensions


def _placed(whole: jax.Array, place: int, tiled: bool) -> jax.Array:
    """Returns [ranks, ...] with the ranks at their place."""
    moved = jnp.moveaxis(whole, 0, place)
    if not tiled:
        return moved
    shape = list(moved.shape)
    shape[place : place + 2] = [math.prod(shape[place : place + 2])]
    return moved.reshape(shape)


# --- Checks --------------------------------------------------------------------------


def _check_exact(mode: str | None) -> None:
    if mode is None or mode == "exact":
        return
    checks.check_mode(mode)
    raise UsageError(
        f"all_gather has mode 'exact' only, got {mode!r}: the other modes add late "
        "data to a later call, or scale partial sums, which is right for gradients "
        "and wrong for parameters. Give the mode to the psum_scatter of the gradients."
    )


def _check_manual(kind: str) -> None:
    automatic = leaf_specs.automatic_axes()
    if automatic:
        raise UsageError(
            f"{kind} needs a region where all axes are manual, but the compiler shards "
            f"{', '.join(map(str, automatic))} by itself here: leave axis_names= out "
            "of jax.shard_map, or call psum, which works there."
        )


def _gathered_leaf(leaf: jax.Array, place: str, call: Call) -> jax.Array:
    """Returns a leaf, typed as varying over the axes."""
    if call.wire_format != "float32" and leaf.dtype != jnp.float32:
        raise UsageError(
            f"{place} is {leaf.dtype}, and wire_format='{call.wire_format}' rounds "
            "float32 values only; leave wire_format out for it."
        )
    extended = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    if extended or leaf.dtype == jax.dtypes.float0 or _bits(leaf.dtype) < 8:
        raise UsageError(
            f"{place} is {leaf.dtype}, which is not supported; for keys of jax.random "
            "gather jax.random.key_data(x), for small integers x.astype(jnp.int8)."
        )
    return allreduce.made_varying(leaf, call.axes)


def _bits(dtype: Any) -> int:
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    return 8 * np.dtype(dtype).itemsize
