"""Averages of gradients, after or inside the backward pass; drain and resync."""

import dataclasses
import functools
from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
from jax import lax

from jax_optireduce._argument_types import Mode, Tree, WireFormat
from jax_optireduce._calls import collectives, stages
from jax_optireduce._errors import UsageError
from jax_optireduce._program import allreduce, checks
from jax_optireduce._program.call import (
    REPLICAS,
    AxisName,
    Call,
    CallArguments,
    Drain,
)
from jax_optireduce._program.leaf_specs import checked_specs
from jax_optireduce._stats import CollectiveStats


@overload
def average_gradients(
    tree: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[False] = False,
    **arguments: Unpack[CallArguments],
) -> Tree: ...
@overload
def average_gradients(
    tree: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[True],
    **arguments: Unpack[CallArguments],
) -> tuple[Tree, CollectiveStats]: ...
def average_gradients(
    tree: Any,
    axis_name: AxisName,
    *,
    return_stats: bool = False,
    **arguments: Unpack[CallArguments],
) -> Any:
    """Averages gradients over a mapped axis, in buckets.

    Buckets hold at most `Options.bucket_bytes` and start with the last leaves, whose
    gradients the backward pass computes first, so that communication overlaps with it.

    Under check_vma=True JAX has already reduced the gradient of replicated parameters,
    so the call is an error; use `sync_in_backward` instead.

    Data that misses the deadline of one step (mode "bounded", the default) is added to
    the gradients of a later one. The ranks may then hold slightly different parameters;
    `resync` makes them equal. If a rank dies, the mean is over the live ranks, see
    `psum`; a program continues after a death only if all its calls have this mode,
    including those of losses and metrics.

    Differs from `jax.lax.pmean` as `pmean` does, and in the default mode and the
    buckets.

    Args:
      tree: gradients; leaves as in `pmean`.
      axis_name: see `psum`.
      return_stats: see `psum`.
      **arguments: see `CallArguments`.

    Returns:
      The mean gradients: the same tree, shapes and dtypes, see `pmean`. With
      `return_stats` the pair of them and this rank's `CollectiveStats`.

    Raises the errors of `psum`.
    """
    reduced = collectives.called("average_gradients", tree, axis_name, arguments)
    return reduced.result(return_stats)


def sync_in_backward(
    params: Tree,
    axis_name: AxisName,
    *,
    global_loss: bool = False,
    **arguments: Unpack[CallArguments],
) -> Tree:
    """Returns the parameters unchanged; averages their gradient in the backward pass.

    This form of data parallelism works with both values of check_vma. Inside
    `jax.shard_map`::

        def loss_fn(params):
            return loss(model(sync_in_backward(params, "data"), batch))


        grads = jax.grad(loss_fn)(params)  # the mean over "data", on every rank

    Differs from `jax.lax.pmean` in the forward pass, which is the identity. The
    backward pass differs as `average_gradients` does.

    Args:
      params: any tree. The gradients of floating leaves are averaged; other leaves,
        such as functions, have no gradient and are unchanged.
      axis_name: see `psum`.
      global_loss: whether the loss is that of all ranks: the result of a collective,
        such as `jax.lax.pmean`. JAX then differentiates through the collective, and
        gives a rank its part of the gradient under check_vma=True, so the parts are
        added up; N times its part under check_vma=False, so they are averaged. False:
        the loss is that of the rank's batch.
      **arguments: see `CallArguments`.

    Returns:
      The same tree. Under check_vma=True its leaves vary over the axis.

    Raises the errors of `psum`.
    """
    kind = "sync_in_backward"
    call = checks.call_of(kind, axis_name, arguments)
    # The transpose of a sum in the loss is a sum only if JAX tracks no variation.
    in_parts = global_loss and allreduce.is_typed(call.axes)
    call = dataclasses.replace(call, mean=not in_parts)
    step = checks.checked_step(arguments.get("step"))
    of_leaves = checked_specs(arguments.get("specs"), params, kind)
    leaves, treedef = jax.tree_util.tree_flatten(params)
    # A module of Equinox has functions among its leaves.
    arrays = {i: jnp.asarray(x) for i, x in enumerate(leaves) if checks.is_array(x)}
    floating = {
        i: array
        for i, array in arrays.items()
        if jnp.issubdtype(array.dtype, jnp.floating)
    }
    for i in arrays.keys() - floating:
        leaves[i] = allreduce.made_varying(arrays[i], call.axes)
    of_floating = tuple(of_leaves[i] for i in floating)
    synced: Any = _sync(call, of_floating, tuple(floating.values()), step)
    for i, leaf in zip(floating, synced, strict=True):
        leaves[i] = leaf
    return jax.tree_util.tree_unflatten(treedef, leaves)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sync(
    call: Call, specs: tuple[Any, ...], leaves: tuple[Any, ...], step: Any
) -> tuple[Any, ...]:
    del specs, step  # The backward pass uses them.
    return tuple(allreduce.made_varying(leaf, call.axes) for leaf in leaves)


def _sync_forward(
    call: Call, specs: tuple[Any, ...], leaves: tuple[Any, ...], step: Any
) -> tuple[tuple[Any, ...], Any]:
    # The cotangent of a leaf must vary as the leaf does.
    varied = tuple(allreduce.fixed_axes(leaf, call.axes) for leaf in leaves)
    return _sync(call, specs, leaves, step), (step, _Static(varied))


def _sync_backward(
    call: Call,
    specs: tuple[Any, ...],
    residuals: Any,
    cotangents: tuple[Any, ...],
) -> tuple[Any, None]:
    step, static = residuals
    reduced = collectives.reduce_tree(cotangents, step, call, specs=specs)
    means = tuple(
        allreduce.made_varying(
            mean, [axis for axis in call.axes if axis not in missing]
        )
        for mean, missing in zip(reduced.tree, static.value, strict=True)
    )
    return means, None


_sync.defvjp(_sync_forward, _sync_backward)


@jax.tree_util.register_static
class _Static:
    """Passes a static value from the forward to the backward pass."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


def drain(
    tree: Any,
    axis_name: AxisName,
    *,
    name: str,
    mode: Mode | None = None,
    wire_format: WireFormat = "float32",
    step: Any = None,
    mean: bool = True,
    specs: Any = None,
    fast_axis: AxisName | None = None,
    scatter_dimension: int | None = None,
    tiled: bool = False,
    return_stats: bool = False,
) -> Any:
    """Returns the data in flight of a collective; afterwards no data is in flight.

    In the modes "bounded" and "agreed", data that missed the deadline of the last call
    joins the next one. A drain is such a call: it contributes zeros, waits for every
    rank and returns all late data, like a gradient. Every rank must call it, at the
    same point of the program. Before a checkpoint or at the end of a run::

        rest = drain(gradients, "data", name="gradients")
        params = jax.tree.map(lambda p, g: p - rate * g, params, rest)

    It drains every collective of this package with this name. The drain and the call
    may be in different jitted functions. In the same function, the tree of the drain
    must depend on the result of the call. A program with several calls under one name
    (`jax.checkpoint` repeats a call) needs as many drains, in one program.

    A drain matches calls of the same name, mode, wire format, axis, fast axis, shapes
    and dtypes. If this process has made calls that may leave data in flight, and none
    that matches, the drain fails when it runs, on every such rank, and the error names
    the nearest calls. So a program makes its first drain after its first step.

    Differs from `jax.lax.pmean` in the values of the leaves, which have no effect.

    Args:
      tree: arrays of the shapes and dtypes of the call, such as the parameters; their
        values are not used. The tree may include leaves that the call does not reduce
        (as with `sync_in_backward`): integers and Python numbers.
      axis_name: as in the call, of the same mesh.
      name: as in the call, which needs an explicit name.
      mode: as in the call; in "exact" and "lossy" no data is in flight.
      wire_format: as in the call; the result of a drain is not rounded.
      step: see `CallArguments`; required if the call has a step.
      mean: whether the sum is divided by the number of ranks; False for a drain of
        `psum`, and of `sync_in_backward` with `global_loss` under check_vma=True.
      specs: as in the call.
      fast_axis: as in the call.
      scatter_dimension: as in `psum_scatter`, for a drain of its calls, where a rank
        gets the late data of its part; None for a drain of the other functions.
      tiled: as in `psum_scatter`.
      return_stats: whether to return the statistics of the drain as well; see `resync`.

    Returns:
      The data in flight, as a result of `pmean`, or of `psum` if not `mean`: the same
      tree and shapes (with `scatter_dimension` those of the parts); the same dtypes,
      except for the mean of int32, which is floating. Sums of int32 are exact. Leaves
      that the call does not reduce are zeros; with `scatter_dimension` they are errors.
      Values may differ between ranks, because each rank gets the data that it missed.
      With `return_stats` the pair of them and this rank's `CollectiveStats`.

    Raises:
      AxisError: see `psum`.
      UsageError: see `psum`; or `name` is None.
      NotInitializedError: see `psum`.
    """
    if name is None:
        raise UsageError(
            "drain needs the name of the calls that it drains: write "
            "name='gradients' there and here."
        )
    key = checks.checked_key(name, "drain")
    call = checks.checked_call(
        "drain", axis_name, key, mode, wire_format, fast_axis, mean=mean
    )
    # A group of one rank has no late data.
    alone = allreduce.axis_size(call.slow) == 1 and not call.over_replicas
    of_calls = Drain.OF_CALLS_IF_ANY if alone else Drain.OF_CALLS
    call = dataclasses.replace(call, drain=of_calls)
    # Always false, but not for the compiler: the zeros depend on the leaves, so a drain
    # runs after the call that computes them.
    never = allreduce.never(call.axes)
    if scatter_dimension is not None:
        if specs is not None or fast_axis is not None:
            raise UsageError(
                "drain with scatter_dimension= takes no specs= or fast_axis=: "
                "psum_scatter needs a region where all axes are manual, and has no "
                "fast axis."
            )
        scattered = _drain_scattered(tree, step, call, never, scatter_dimension, tiled)
        return scattered.result(return_stats)
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    zeros = [jnp.zeros(jnp.shape(x), jax.dtypes.result_type(x)) for x in leaves]
    called = {
        i: allreduce.made_varying(
            jnp.where(never, lax.stop_gradient(leaf), zeros[i]), call.axes
        )
        for i, leaf in enumerate(leaves)
        if checks.is_reducible(leaf, call)
    }
    of_leaves = checked_specs(specs, tree, call.kind)
    of_called = [of_leaves[i] for i in called]
    operands = list(called.values())
    rest = collectives.reduce_tree(operands, step, call, specs=of_called)
    for i, leaf in zip(called, rest.tree, strict=True):
        zeros[i] = leaf
    drained = jax.tree_util.tree_unflatten(treedef, zeros)
    return rest._replace(tree=drained).result(return_stats)


def _drain_scattered(
    tree: Any,
    step: Any,
    call: Call,
    never: jax.Array,
    scatter_dimension: int,
    tiled: bool,
) -> collectives.Reduction:
    """Drains calls of `psum_scatter`, whose trees have no other leaves."""
    zeros = jax.tree.map(
        lambda leaf: allreduce.made_varying(
            jnp.where(never, lax.stop_gradient(leaf), jnp.zeros_like(leaf)), call.axes
        ),
        tree,
    )
    scattering = stages.scattering(call)
    rest = stages.scatter_tree(zeros, step, scattering, scatter_dimension, tiled)
    if not call.mean:
        return rest
    size = lax.axis_size(call.axes)
    return rest._replace(tree=jax.tree.map(lambda leaf: leaf / size, rest.tree))


def resync(
    params: Any,
    axis_name: AxisName,
    *,
    specs: Any = None,
    fast_axis: AxisName | None = None,
    return_stats: bool = False,
) -> Any:
    """Makes replicas equal again, bit for bit: the mean over the ranks.

    In the modes "bounded" and "lossy" ranks may miss different parts of a gradient, and
    their parameters drift apart: in "bounded" until the late part arrives, or
    permanently if the update of the optimizer is not linear in the gradient, as in
    AdamW. Call `resync` every 100 steps with such an optimizer, and before a
    checkpoint, which holds the replica of one rank. It waits for all ranks, like mode
    "exact", and continues without a dead rank, like mode "bounded".

    If a rank dies during the call, parts of the mean may be missing. A rank that misses
    any part keeps its own parameters until the next call.

    The call itself may remove a dead rank, so a program that waits for all ranks
    afterwards, as Orbax does before it writes, asks this call who is alive::

        params, stats = resync(params, "data", return_stats=True)
        stats.live_processes  # the same on all ranks; jax.process_count() if all live

    Differs from `jax.lax.pmean` in integers and other non-floating leaves, which are
    unchanged.

    Args:
      params: parameters, or (parameters, state of the optimizer); any tree.
      axis_name: see `psum`.
      specs: see `CallArguments`.
      fast_axis: see `CallArguments`.
      return_stats: whether to return the statistics of the call as well.

    Returns:
      The same tree. Floating leaves are the mean over the ranks, with the same bits on
      all of them; other leaves, such as counters, are unchanged. With `return_stats`
      the pair of it and this rank's `CollectiveStats`.

    Raises the errors of `psum`.
    """
    key = checks.checked_key(None, "resync")
    # A drain waits for all live ranks, with any values.
    drain = Drain.OF_CALLS_IF_ANY
    call = checks.checked_call(
        "resync", axis_name, key, "bounded", fast_axis=fast_axis, drain=drain
    )
    axes = call.axes
    leaves, treedef = jax.tree_util.tree_flatten(params)
    own = {
        i: allreduce.made_varying(jnp.asarray(leaf), axes)
        for i, leaf in enumerate(leaves)
        if jnp.issubdtype(jax.dtypes.result_type(leaf), jnp.floating)
    }
    of_leaves = checked_specs(specs, params, call.kind)
    of_own = [of_leaves[i] for i in own]
    reduction = collectives.reduce_tree(list(own.values()), None, call, specs=of_own)
    report = reduction.stats()
    whole = report.missing_contributions + report.missing_results + report.deferred == 0
    of_calls = (*allreduce.mapped_axes(axes), REPLICAS)
    local = tuple(axis for axis in axes if axis not in of_calls)
    for i, mean in zip(own, reduction.tree, strict=True):
        kept = allreduce.typed_as_sum(lax.pmean(own[i], local), axes)
        leaves[i] = jnp.where(whole, mean, kept)
    synced = jax.tree_util.tree_unflatten(treedef, leaves)
    return (synced, report) if return_stats else synced
