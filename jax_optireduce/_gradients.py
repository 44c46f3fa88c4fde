"""Averages of gradients, after the backward pass or inside of it; drain and resync."""

import dataclasses
import functools
from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
from jax import lax

from jax_optireduce import _checks, _collectives, _compat, _primitive
from jax_optireduce._call import Call, CallArguments, Drain
from jax_optireduce._checks import AxisName
from jax_optireduce._errors import UsageError
from jax_optireduce._stats import CollectiveStats


@overload
def average_gradients(
    tree: Any,
    axis_name: AxisName,
    *,
    return_stats: Literal[False] = False,
    **arguments: Unpack[CallArguments],
) -> Any: ...
@overload
def average_gradients(
    tree: Any,
    axis_name: AxisName,
    *,
    return_stats: Literal[True],
    **arguments: Unpack[CallArguments],
) -> tuple[Any, CollectiveStats]: ...
def average_gradients(
    tree: Any,
    axis_name: AxisName,
    *,
    mode: str = "bounded",
    wire_format: str = "float32",
    step: Any = None,
    name: str | None = None,
    return_stats: bool = False,
) -> Any:
    """Averages gradients over a mapped axis, in buckets.

    Buckets hold at most `Options.bucket_bytes` and start with the last leaves, whose
    gradients the backward pass computes first: they travel while it continues.

    Under check_vma=True JAX has already reduced the gradient of replicated parameters,
    which is an error here; use `sync_in_backward` instead.

    Data that misses the deadline of one step (mode "bounded", the default) is added to
    the gradients of a later one. The ranks may then hold slightly different parameters;
    `resync` makes them equal. If a rank dies, the mean is over the live ranks, see
    `psum`; a program continues after a death only if all calls in it are of this mode,
    its loss and metrics included.

    Differs from `jax.lax.pmean` in: what `pmean` differs in, the default mode, and the
    buckets.

    Args:
      tree: gradients; leaves as in `pmean`.
      axis_name: see `psum`.
      mode: see `psum`.
      wire_format: see `psum`.
      step: see `psum`; pass the optimizer's count where a rank may repeat a step.
      name: see `psum`.
      return_stats: see `psum`.

    Returns:
      The mean gradients: the same tree, shapes and dtypes, see `pmean`. With
      `return_stats` the pair of them and this rank's `CollectiveStats`.

    Raises:
      AxisError: see `psum`.
      UsageError: see `psum`.
      NotInitializedError: see `psum`.
    """
    kind = "average_gradients"
    key = _checks.checked_key(name, kind)
    call = _checks.checked_call(kind, axis_name, key, mode, wire_format)
    return _collectives.reduce_tree(tree, step, call).result(return_stats)


def sync_in_backward(
    params: Any,
    axis_name: AxisName,
    *,
    mode: str = "bounded",
    wire_format: str = "float32",
    step: Any = None,
    name: str | None = None,
) -> Any:
    """Returns the parameters unchanged; averages their gradient in the backward pass.

    The data-parallel form for both values of check_vma. Inside `jax.shard_map`::

        def loss_fn(params):
            return loss(model(sync_in_backward(params, "data"), batch))


        grads = jax.grad(loss_fn)(params)  # the mean over "data", on every rank

    Differs from `jax.lax.pmean` in: the forward pass is the identity, and what
    `average_gradients` differs in concerns the backward pass.

    Args:
      params: floating leaves are averaged; others, which have no gradient, pass.
      axis_name: see `psum`.
      mode: see `psum`.
      wire_format: see `psum`.
      step: see `average_gradients`.
      name: see `psum`.

    Returns:
      The same tree. Under check_vma=True its leaves vary over the axis.

    Raises:
      AxisError: see `psum`.
      UsageError: see `psum`.
      NotInitializedError: see `psum`.
    """
    kind = "sync_in_backward"
    key = _checks.checked_key(name, kind)
    call = _checks.checked_call(kind, axis_name, key, mode, wire_format)
    step = _checks.checked_step(step)
    leaves, treedef = jax.tree_util.tree_flatten(params)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    floating = {
        i: leaf
        for i, leaf in enumerate(leaves)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    }
    for i in set(range(len(leaves))) - set(floating):
        leaves[i] = made_varying(leaves[i], call.axes)
    synced: Any = _sync(call, tuple(floating.values()), step)
    for i, leaf in zip(floating, synced, strict=True):
        leaves[i] = leaf
    return jax.tree_util.tree_unflatten(treedef, leaves)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sync(call: Call, leaves: tuple[Any, ...], step: Any) -> tuple[Any, ...]:
    del step  # For the backward pass.
    return tuple(made_varying(leaf, call.axes) for leaf in leaves)


def _sync_forward(
    call: Call, leaves: tuple[Any, ...], step: Any
) -> tuple[tuple[Any, ...], Any]:
    # The cotangent of a leaf must vary as the leaf does.
    varied = tuple(_missing_axes(leaf, call.axes) for leaf in leaves)
    return _sync(call, leaves, step), (step, _Static(varied))


def _sync_backward(
    call: Call, residuals: Any, cotangents: tuple[Any, ...]
) -> tuple[Any, None]:
    step, static = residuals
    reduced = _collectives.reduce_tree(cotangents, step, call)
    means = tuple(
        made_varying(mean, [axis for axis in call.axes if axis not in missing])
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
    mode: str = "bounded",
    wire_format: str = "float32",
    step: Any = None,
    mean: bool = True,
) -> Any:
    """Returns the data in flight of a collective; afterwards no data is in flight.

    In the modes "bounded" and "agreed", data that missed the deadline of the last call
    waits for the next one. A drain is that call: it contributes zeros, waits for every
    rank and returns all late data, like a gradient. Every rank must call it, at the
    same point of the program. Before a checkpoint or at the end of a run::

        rest = drain(gradients, "data", name="gradients")
        params = jax.tree.map(lambda p, g: p - rate * g, params, rest)

    It drains every collective of this package that has the name. It may be in another
    jitted function than the call. In the same one, its tree must come from the result
    of the call. A program that makes several calls under one name (also by
    `jax.checkpoint`, which makes a call again) drains as often, in one program.

    It fits a call of the same name, mode, wire format, axis, shapes and dtypes. If this
    process has made calls that may leave data in flight, and none that fits, the drain
    fails when it runs, on every such rank, and the error names the nearest calls. So a
    program makes its first drain after its first step.

    Differs from `jax.lax.pmean` in: the values of the leaves do not matter.

    Args:
      tree: arrays of the shapes and dtypes of the call, such as the parameters; their
        values are not used. It may also hold leaves that travel in no call
        (`sync_in_backward` lets them pass): integers and Python numbers.
      axis_name: as in the call, of the same mesh.
      name: as in the call, which needs an explicit one.
      mode: as in the call; in "exact" and "lossy" no data is ever in flight.
      wire_format: as in the call; the result of a drain is not rounded.
      step: see `psum`; needed where the call is given one.
      mean: whether the sum is divided by the number of ranks; False to drain `psum`.

    Returns:
      The data in flight, as `pmean` would return it, or with mean=False as `psum`: the
      same tree and shapes; the same dtypes, but for the mean of int32, which is
      floating. Sums of int32 are exact. Leaves that travel in no call are zeros. Ranks
      may see different values, because each gets the data that it missed.

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
    key = _checks.checked_key(name, "drain")
    call = _checks.checked_call("drain", axis_name, key, mode, wire_format, mean=mean)
    # A rank on its own is never late.
    alone = lax.axis_size(call.axes) == 1
    of_calls = Drain.OF_CALLS_IF_ANY if alone else Drain.OF_CALLS
    call = dataclasses.replace(call, drain=of_calls)
    # Never true, but the compiler does not know: the zeros need the leaves, and so a
    # drain runs after the call whose result it is given.
    never = lax.axis_index(call.axes) < 0
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    zeros = [jnp.zeros(jnp.shape(x), jax.dtypes.result_type(x)) for x in leaves]
    called = {
        i: made_varying(jnp.where(never, lax.stop_gradient(leaf), zeros[i]), call.axes)
        for i, leaf in enumerate(leaves)
        if _checks.travels(leaf, call)
    }
    rest = _collectives.reduce_tree(list(called.values()), step, call).tree
    for i, leaf in zip(called, rest, strict=True):
        zeros[i] = leaf
    return jax.tree_util.tree_unflatten(treedef, zeros)


def resync(params: Any, axis_name: AxisName) -> Any:
    """Makes replicas equal again, bit for bit: the mean over the ranks.

    In the modes "bounded" and "lossy" ranks may miss different parts of a gradient, and
    their parameters drift apart: in "bounded" until the late part has come, but an
    optimizer whose update is not linear, such as AdamW, makes two different steps of
    the halves. Call it every 100 steps with such an optimizer, and before a checkpoint,
    which holds the replica of one rank. It waits for all ranks, like mode "exact", and
    continues without a dead one, like mode "bounded".

    If a rank dies during the call, parts of the mean may be missing. A rank that
    misses any part keeps its own parameters, until the next call.

    Differs from `jax.lax.pmean` in: leaves that are not floating stay as they are.

    Args:
      params: parameters, or (parameters, state of the optimizer); any tree.
      axis_name: see `psum`.

    Returns:
      The same tree. Floating leaves are the mean over the ranks, and have the same bits
      on all of them; others, such as counters, are untouched.

    Raises:
      AxisError: see `psum`.
      UsageError: see `psum`.
      NotInitializedError: see `psum`.
    """
    key = _checks.checked_key(None, "resync")
    # A drain waits for all live ranks, with any values.
    drain = Drain.OF_CALLS_IF_ANY
    call = _checks.checked_call("resync", axis_name, key, "bounded", drain=drain)
    axes = call.axes
    leaves, treedef = jax.tree_util.tree_flatten(params)
    own = {
        i: made_varying(jnp.asarray(leaf), axes)
        for i, leaf in enumerate(leaves)
        if jnp.issubdtype(jax.dtypes.result_type(leaf), jnp.floating)
    }
    reduction = _collectives.reduce_tree(list(own.values()), None, call)
    report = reduction.stats()
    whole = report.missing_contributions + report.missing_results + report.deferred == 0
    local = tuple(axis for axis in axes if axis not in _primitive.of_the_mesh(axes))
    for i, mean in zip(own, reduction.tree, strict=True):
        kept = _primitive.typed_as_sum(lax.pmean(own[i], local), axes)
        leaves[i] = jnp.where(whole, mean, kept)
    return jax.tree_util.tree_unflatten(treedef, leaves)


def _missing_axes(x: Any, axes: Any) -> tuple[str, ...]:
    """Returns those of `axes` over which `x` should vary and does not."""
    if not _primitive.is_typed(axes):
        return ()
    varying = _compat.varying_axes(x)
    return tuple(a for a in _primitive.of_the_mesh(axes) if a not in varying)


def made_varying(x: Any, axes: Any) -> Any:
    """Returns `x`, typed as varying over `axes` where JAX tracks that."""
    missing = _missing_axes(x, axes)
    return lax.pcast(x, missing, to="varying") if missing else x
