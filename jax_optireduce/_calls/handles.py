"""Calls in two steps: `begin` starts a call and returns a handle, `end` waits for it.

XLA makes the results of a program available at its end, so a call inside a program
delays the end of that program, even if only a later program needs the result. `begin`
copies the leaves into memory of the engine, which then makes the call by itself; the
handle is a small array for each bucket, which a program can carry to a later one. The
two primitives have the same rules as `allreduce_p` for effects: see `allreduce`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Generic, Literal, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_optireduce import _native, _stats
from jax_optireduce._argument_types import Mode, Tree
from jax_optireduce._calls import collectives
from jax_optireduce._calls.collectives import ReducedBucket, Reduction
from jax_optireduce._errors import UsageError
from jax_optireduce._jax import lowering, shard_types
from jax_optireduce._program import (
    allreduce,
    bucketing,
    checks,
    hadamard,
    leaf_specs,
    native_calls,
    program_checks,
    rotation,
    rules,
)
from jax_optireduce._program.bucketing import Bucket
from jax_optireduce._program.call import REPLICAS, AxisName, Call, StageArguments
from jax_optireduce._session import communicator
from jax_optireduce._session.options import Options
from jax_optireduce._stats import CollectiveStats

# Positions in a token. Source: ffi/bind/call_facts.h.
_COLLECTIVE, _STEP = 1, 3

begin_p = Primitive("optireduce_begin")
end_p = Primitive("optireduce_end")
end_p.multiple_results = True


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """The type of a leaf.

    Attributes:
      shape: of the leaf, and of its sum.
      dtype: of its sum.
      varying: manual axes over which the sum varies; sorted.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    varying: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Returns the number of elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """The static part of a handle.

    Attributes:
      treedef: of the tree.
      leaves: of the tree.
      axes: of the call.
      mode: of the call.
      mean: whether the result is a mean.
      rotated: whether the buckets are rotated.
      buckets: one for each token; None with the backend "xla", where the handle holds
        the results.
    """

    treedef: Any
    leaves: tuple[_Leaf, ...]
    axes: tuple[Any, ...]
    mode: str
    mean: bool
    rotated: bool
    buckets: tuple[Bucket, ...] | None


@jax.tree_util.register_pytree_node_class
class Handle(Generic[Tree]):
    """A call that `begin` has started, for `end`: a pytree of small arrays.

    It can be an argument and a result of jitted functions, a carried value of
    `jax.lax.scan`, and be donated. Its arrays are equal on all ranks, so its spec in
    `jax.shard_map` is `PartitionSpec()`. Handles of calls with the same arguments have
    the same structure.
    """

    def __init__(self, arrays: Sequence[Any], plan: _Plan) -> None:
        """For `begin` and `empty_handle` only."""
        self._arrays = tuple(arrays)
        self._plan = plan

    def __repr__(self) -> str:
        """Describes the call."""
        plan = self._plan
        return f"Handle({len(plan.leaves)} leaves over {plan.axes}, mode {plan.mode!r})"

    def tree_flatten(self) -> tuple[tuple[Any, ...], _Plan]:
        """Returns arrays and static part, for JAX."""
        return self._arrays, self._plan

    @classmethod
    def tree_unflatten(cls, plan: _Plan, arrays: Sequence[Any]) -> "Handle":
        """Undoes `tree_flatten`, for JAX."""
        return cls(arrays, plan)


def begin(
    tree: Tree,
    axis_name: AxisName,
    *,
    mean: bool = True,
    after: Any = None,
    **arguments: Unpack[StageArguments],
) -> Handle[Tree]:
    """Starts an average over a mapped axis, and returns without its result.

    The call runs while the program computes, and beyond its end. `end` waits for it, in
    the same program or in a later one. Here the call of the first half of a batch
    overlaps with the gradients of the second half::

        def step(params, first, second):
            begun = begin(jax.grad(loss_fn)(params, first), "data", name="first")
            rest = jax.grad(loss_fn)(params, second)
            rest = average_gradients(rest, "data", name="second")
            half = end(begun, after=rest)
            return update(params, jax.tree.map(lambda a, b: (a + b) / 2, half, rest))

    `examples/overlapped_steps.py` has steps that also carry handles to the next step.
    A handle is ended once.
    In the order of the calls, `begin` is the call: it matches calls of other ranks, and
    drains, as a call of `average_gradients` with the same name does. Calls of the same
    name wait for each other.

    Differs from `average_gradients` in:

    * The leaves are copied: the engine holds one copy of them for each open handle.
      Under one name a device has 8 open handles at most: a further `begin` drops the
      result of the oldest one if its call has ended, and is an error otherwise.
    * All axes of the mesh must be manual, and all axes of the call axes of the mesh.
    * It cannot be differentiated or batched by `jax.vmap`.

    Args:
      tree: leaves as in `pmean`; constants are reduced as well.
      axis_name: see `psum`.
      mean: whether the sum is divided by the number of ranks, see `pmean`.
      after: any tree of arrays that are computed before the call starts, such as the
        handle of another call. In programs for GPU and TPU it keeps the starts of two
        calls apart, which the compiler otherwise joins when both have their leaves.
      **arguments: see `CallArguments`; mode None takes `Options.mode`, or else
        "bounded".

    Returns:
      The handle.

    Raises:
      AxisError: see `psum`.
      UsageError: see `psum`; or an axis of the mesh is not manual.
      NotInitializedError: see `psum`.
    """
    call = checks.call_of("begin", axis_name, arguments, StageArguments, mean=mean)
    return _begun(tree, arguments.get("step"), call, after)


def empty_handle(
    tree: Tree, axis_name: AxisName, *, mean: bool = True, mode: Mode | None = None
) -> Handle[Tree]:
    """Returns a handle of no call, for the first step: `end` returns zeros for it.

    Call it anywhere, with the arguments of the `begin` whose handle it replaces. Under
    check_vma=True, on a mesh with further manual axes, call it inside the same
    `jax.shard_map`, whose types it then has.

    Args:
      tree: arrays of the shapes and dtypes of the tree of `begin`, such as the
        parameters; their values are not used.
      axis_name: as in `begin`.
      mean: as in `begin`.
      mode: as in `begin`.

    Returns:
      The handle. It can be ended any number of times.

    Raises:
      UsageError: a leaf or the mode is invalid.
      NotInitializedError: see `psum`.
    """
    options = communicator.current("empty_handle").options
    axes = checks.axes_of(axis_name)
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    types = [_type_of_sum(leaf, axes) for leaf in leaves]
    plan = _planned(
        options,
        treedef=treedef,
        leaves=tuple(types),
        axes=axes,
        mode=checks.resolved_mode(mode, "empty_handle"),
        mean=mean,
    )
    if plan.buckets is not None:
        token = jnp.zeros(_native.TOKEN_ELEMENTS, jnp.int32)
        # One array each: JAX does not donate an array twice.
        return Handle([token + 0 for _ in plan.buckets], plan)
    zeros = [
        allreduce.made_varying(jnp.zeros(leaf.shape, leaf.dtype), leaf.varying)
        for leaf in plan.leaves
    ]
    return Handle(zeros, plan)


@overload
def end(
    handle: Handle[Tree], *, after: Any = None, return_stats: Literal[False] = False
) -> Tree: ...
@overload
def end(
    handle: Handle[Tree], *, after: Any = None, return_stats: Literal[True]
) -> tuple[Tree, CollectiveStats]: ...
def end(handle: Handle, *, after: Any = None, return_stats: bool = False) -> Any:
    """Waits for a call that `begin` has started, and returns its result.

    Differs from `average_gradients` in its errors: a dead rank, a disagreement between
    ranks or a cancellation ends the program that calls `end`, not that of `begin`. A
    handle that is ended twice, or is of another session, is an error too.

    Args:
      handle: the result of `begin`, or of `empty_handle`.
      after: any tree of arrays that are computed before the wait: the new handle, or
        the gradients. A small program may otherwise wait first, and compute afterwards.
      return_stats: see `psum`; the statistics of the call.

    Returns:
      The means, or sums, of the tree given to `begin`. With `return_stats` the pair of
      them and this rank's `CollectiveStats`.

    Raises:
      AxisError: the axis of the call is not mapped here.
      UsageError: `handle` is not a handle.
      NotInitializedError: see `psum`.
    """
    if not isinstance(handle, Handle):
        raise UsageError(
            f"end needs the handle that begin returned, got {type(handle).__name__}."
        )
    return _ended(handle, after).result(return_stats)


def _begun(tree: Tree, step: Any, call: Call, after: Any) -> Handle[Tree]:
    """Starts the calls of a tree; each bucket gets a suffix to the key."""
    options = communicator.current(call.kind).options
    _check_place(call.axes, call.kind)
    step = checks.checked_step(step)
    named, treedef = checks.named_leaves(tree, call.kind)
    leaves = [_checked_leaf(place, leaf, call) for place, leaf in named]
    types = [_type_of_sum(leaf, call.axes) for leaf in leaves]
    plan = _planned(
        options,
        treedef=treedef,
        leaves=tuple(types),
        axes=call.axes,
        mode=call.mode,
        mean=call.mean,
    )
    if plan.buckets is None:
        sums = [lax.psum(leaf, call.axes) for leaf in leaves]
        return Handle(sums, plan)
    call = dataclasses.replace(call, counted=step is None, rotated=plan.rotated)
    before = [lax.stop_gradient(x) for x in jax.tree.leaves(after)]
    tokens = []
    for bucket in plan.buckets:
        sent = [leaves[i] for i in bucket.leaves]
        if before:
            sent, _ = lax.optimization_barrier((sent, before))
        token = begin_p.bind(
            *allreduce.operands(sent, step, call),
            call=dataclasses.replace(call, key=call.key + bucket.suffix),
        )
        tokens.append(token)
        # The next bucket starts after this one: joined, both would wait for all leaves.
        before = [token]
    return Handle(tokens, plan)


def _checked_leaf(place: str, leaf: Any, call: Call) -> jax.Array:
    """Returns a leaf of a call; a constant, too, is an operand."""
    if not isinstance(leaf, Tracer):
        constant = jnp.asarray(checks.checked_constant(leaf, place))
        leaf = allreduce.made_varying(constant, call.axes)
    return checks.checked_leaf(leaf, place, call)


def _ended(handle: Handle, after: Any) -> Reduction:
    """Waits for the calls of a handle."""
    arrays, plan = handle.tree_flatten()
    communicator.current("end")
    axes = checks.checked_axes(plan.axes, "end")
    _check_place(axes, "end")
    sums = {i: jnp.zeros(leaf.shape, leaf.dtype) for i, leaf in enumerate(plan.leaves)}
    buckets = []
    if plan.buckets is None:
        sums = dict(enumerate(arrays))
    else:
        before = [lax.stop_gradient(x) for x in jax.tree.leaves(after)]
        rank = allreduce.group_and_rank(axes)
        typed = allreduce.is_typed(axes)
        for token, bucket in zip(arrays, plan.buckets, strict=True):
            types = tuple(plan.leaves[i] for i in bucket.leaves)
            *flat, vector = end_p.bind(
                rank,
                token,
                *before,
                leaves=types,
                rotated=plan.rotated,
                typed=typed,
            )
            for i, x in zip(bucket.leaves, flat, strict=True):
                sums[i] = x.reshape(plan.leaves[i].shape)
            positions = list(bucket.leaves)
            buckets.append(ReducedBucket(positions, bucket.elements, vector))
    results = [sums[i] for i in range(len(plan.leaves))]
    if plan.mean:
        size = allreduce.axis_size(axes)
        ranks = {}
        replicas = REPLICAS in axes
        if plan.mode == "bounded" or replicas:
            ranks = collectives.live_ranks(sums, buckets, size, replicas=replicas)
        results = [total / ranks.get(i, size) for i, total in enumerate(results)]
    return Reduction(jax.tree_util.tree_unflatten(plan.treedef, results), buckets)


def _planned(options: Options, **fields: Any) -> _Plan:
    """Returns the plan of a call: a function of its arguments and the options."""
    if options.backend == "xla":
        return _Plan(**fields, rotated=False, buckets=None)
    leaves = fields["leaves"]
    buckets = bucketing.plan_buckets(
        [leaf.shape for leaf in leaves],
        [leaf.dtype for leaf in leaves],
        bucket_bytes=options.bucket_bytes,
    )
    rotated = fields["mode"] == "lossy"
    return _Plan(**fields, rotated=rotated, buckets=buckets)


def _type_of_sum(leaf: Any, axes: tuple[Any, ...]) -> _Leaf:
    dtype = np.dtype(jax.dtypes.result_type(leaf))
    if dtype == np.bool_:
        dtype = np.dtype(np.int32)
    varying = (
        shard_types.varying_axes(leaf) if isinstance(leaf, Tracer) else frozenset()
    )
    return _Leaf(jnp.shape(leaf), dtype, tuple(sorted(varying - set(axes))))


def _check_place(axes: tuple[Any, ...], kind: str) -> None:
    """Raises `UsageError` where a call cannot be divided into two steps."""
    known = (*allreduce.mapped_axes(axes), REPLICAS)
    others = [axis for axis in axes if axis not in known]
    if others:
        raise UsageError(
            f"{kind} over {others}: an axis of jax.vmap is summed in the program, not "
            "between processes; write average_gradients, or map it by jax.shard_map."
        )
    automatic = list(leaf_specs.automatic_axes())
    if automatic:
        raise UsageError(
            f"{kind} where the axes {automatic} are not manual: leave axis_names out "
            "of jax.shard_map, which makes all axes manual; or write "
            "average_gradients."
        )


# --- The primitives ------------------------------------------------------------------


def _begin_type(rank: Any, *_: Any, **__: Any) -> Any:
    return shard_types.vector_type(rank, _native.TOKEN_ELEMENTS, np.int32)


def _lower_begin(
    ctx: Any, rank: Any, step: Any, *leaves: Any, call: Call, platform: str
) -> Any:
    way = native_calls.way(platform, call.kind)
    program_checks.check(ctx, call)
    attributes = allreduce.call_attributes(ctx, ctx.avals_in[2:], call)

    def program(rank: jax.Array, step: jax.Array, *leaves: jax.Array) -> jax.Array:
        number = None if call.counted else step
        operands: Sequence[jax.Array] = leaves
        if call.rotated:
            number, encoded = rotation.rotated(rank, number, leaves, attributes, way)
            operands = [encoded]
        return way.begin(rank, number, operands, attributes)

    return mlir.lower_fun(program, multiple_results=False)(
        lowering.without_manual_types(ctx), rank, step, *leaves
    )


def _end_types(
    rank: Any, _token: Any, *_: Any, leaves: tuple[_Leaf, ...], typed: bool, **__: Any
) -> list[Any]:
    vectors = [
        shard_types.vector_type(
            rank, leaf.size, leaf.dtype, leaf.varying if typed else ()
        )
        for leaf in leaves
    ]
    return [*vectors, shard_types.stats_type(rank, _stats.VECTOR_SIZE)]


def _lower_end(
    ctx: Any,
    *operands: Any,
    leaves: tuple[_Leaf, ...],
    rotated: bool,
    typed: bool,
    platform: str,
) -> Any:
    del typed
    way = native_calls.way(platform, "end")
    flat = [jax.ShapeDtypeStruct((leaf.size,), leaf.dtype) for leaf in leaves]
    results = flat
    if rotated:
        coefficients = hadamard.padded_size(sum(leaf.size for leaf in leaves))
        results = [jax.ShapeDtypeStruct((coefficients,), leaves[0].dtype)]

    def program(rank: jax.Array, token: jax.Array, *after: jax.Array) -> list[Any]:
        *sums, vector = way.end(rank, token, after, results)
        if rotated:
            salt = token[_COLLECTIVE].astype(jnp.uint32)
            key = rotation.key_of(token[_STEP], salt)
            sums = rotation.unrotated(sums[0], vector, key, flat)
        return [*sums, vector]

    return mlir.lower_fun(program, multiple_results=True)(
        lowering.without_manual_types(ctx), *operands
    )


def _refuse_derivative(*_: Any, **__: Any) -> Any:
    raise UsageError(
        "begin cannot be differentiated: its result arrives after the derivative is "
        "computed. Call it with the gradients that jax.grad returns, outside of the "
        "differentiated function; or put jax.lax.stop_gradient around its leaves."
    )


def _refuse_batch(*_: Any, **__: Any) -> Any:
    raise UsageError(
        "begin and end cannot be mapped by jax.vmap: there is one handle for a call, "
        "not one for each element of a batch. Call them outside of the mapped function."
    )


begin_p.def_abstract_eval(_begin_type)
end_p.def_abstract_eval(_end_types)
ad.primitive_jvps[begin_p] = _refuse_derivative
for _p, _lower in ((begin_p, _lower_begin), (end_p, _lower_end)):
    batching.primitive_batchers[_p] = _refuse_batch
    rules.register_lowering(_p, _lower, native_calls.PLATFORMS)
