"""`psum` and `pmean`: the calls of `jax.lax`, over the transport of this package."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Unpack, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from jax_optireduce import _stats
from jax_optireduce._argument_types import Tree
from jax_optireduce._calls.fast_axis import gathered, part_shape, scattered
from jax_optireduce._program import allreduce, bucketing, checks
from jax_optireduce._program.call import AxisName, Call, CallArguments, Drain
from jax_optireduce._program.leaf_specs import (
    Part,
    automatic_axes,
    checked_specs,
    divided,
    restored,
)
from jax_optireduce._session import communicator
from jax_optireduce._session.options import Options
from jax_optireduce._stats import CollectiveStats


class _LaxArguments(CallArguments, total=False):
    axis_index_groups: None


class ReducedBucket(NamedTuple):
    """Statistics of the call of one bucket.

    Attributes:
      leaves: positions of its leaves in the tree.
      elements: number of their elements.
      vector: its statistics vector.
    """

    leaves: list[int]
    elements: int
    vector: jax.Array


class Reduction(NamedTuple):
    """A reduced tree, and the statistics of its buckets.

    Attributes:
      tree: the sums or means.
      buckets: statistics of its leaves, without leaves that are constants.
    """

    tree: Any
    buckets: list[ReducedBucket]

    def result(self, return_stats: bool) -> Any:
        """Returns the tree, or the pair (tree, report)."""
        return (self.tree, self.stats()) if return_stats else self.tree

    def stats(self) -> CollectiveStats:
        """Returns the report; some operations, which few callers need."""
        return _stats.from_vectors(
            [bucket.vector for bucket in self.buckets],
            [bucket.elements for bucket in self.buckets],
        )


@overload
def psum(
    tree: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[False] = False,
    **arguments: Unpack[_LaxArguments],
) -> Tree: ...
@overload
def psum(
    tree: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[True],
    **arguments: Unpack[_LaxArguments],
) -> tuple[Tree, CollectiveStats]: ...
def psum(
    tree: Any,
    axis_name: AxisName,
    *,
    return_stats: bool = False,
    axis_index_groups: None = None,
    **arguments: Unpack[CallArguments],
) -> Any:
    """Sums every leaf over a mapped axis.

    Call it where `jax.lax.psum` works: inside `jax.shard_map`, with all axes manual or
    some, inside `jax.pmap`, or over the axis of a named `jax.vmap`. It can be
    differentiated, batched, scanned, rematerialised and jitted like `jax.lax.psum`.

    Differs from `jax.lax.psum` in:

    * Contributions are added in the order of the ranks, in float32 for bfloat16 and
      float16, so the last bits may differ. They are the same on every rank.
    * A floating value that does not vary over the axis (check_vma=True) is an error,
      because all ranks have the same one; `jax.lax.psum` multiplies it by the size of
      the axis.
    * Complex numbers and integers other than int32 are errors.
    * Groups of indices are an axis of the mesh, not `axis_index_groups`, and axes have
      names, not positions.
    * Programs run on CPUs and NVIDIA GPUs, and compile for TPU (docs/accelerators.md);
      JAX_OPTIREDUCE_BACKEND=xla uses JAX's own collectives.
    * A jitted function that holds a call and is itself called twice in one program
      needs the second call to depend on the first: they share one identity.
    * In modes other than "exact" a sum may lack late data; `return_stats=True` reports
      its share.
    * In modes "bounded" and "lossy" a result may differ between ranks: a `while_loop`
      or a `cond` that decides by it whether a rank makes a call is an error at
      compilation.
    * In modes "bounded" and "agreed" a derivative that is itself a sum over the ranks
      (`jax.jvp`; `jax.grad` under check_vma=False) is an error at compilation: no
      `drain` reaches its late data.

    Args:
      tree: leaves of any shape, float32, bfloat16, float16, float64, int32 or bool
        (mode "lossy": no int32 or bool). Python numbers and arrays other than tracers
        are the same on every rank, so they are multiplied by the size of the axis:
        `psum(1, axis)` is the size.
      axis_name: a mapped axis or a tuple of them.
      return_stats: whether to return the statistics of the call as well as the sums.
      axis_index_groups: None, the default of `jax.lax.psum`.
      **arguments: see `CallArguments`.

    Returns:
      The same tree, with the shapes and dtypes of the leaves; of bool, int32. With
      `return_stats` the pair of it and this rank's `CollectiveStats`.

    Raises:
      AxisError: the axis is not mapped here.
      UsageError: a leaf, the mode, the step, or the place in the program is invalid; or
        a derivative or a decision, at compilation.
      NotInitializedError: `jax_optireduce.init` was not called.
    """
    checks.check_no_groups(axis_index_groups, "psum")
    reduced = called("psum", tree, axis_name, arguments, mean=False)
    return reduced.result(return_stats)


@overload
def pmean(
    tree: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[False] = False,
    **arguments: Unpack[_LaxArguments],
) -> Tree: ...
@overload
def pmean(
    tree: Tree,
    axis_name: AxisName,
    *,
    return_stats: Literal[True],
    **arguments: Unpack[_LaxArguments],
) -> tuple[Tree, CollectiveStats]: ...
def pmean(
    tree: Any,
    axis_name: AxisName,
    *,
    return_stats: bool = False,
    axis_index_groups: None = None,
    **arguments: Unpack[CallArguments],
) -> Any:
    """Averages every leaf over a mapped axis.

    Differs from `jax.lax.pmean` as `psum` differs from `jax.lax.psum`.

    Args:
      tree: see `psum`.
      axis_name: see `psum`.
      return_stats: see `psum`.
      axis_index_groups: see `psum`.
      **arguments: see `CallArguments`. Modes "lossy" and "bounded" return the mean over
        the contributions that arrived, "exact" and "agreed" divide by the number of
        ranks. In "bounded" an element without any contribution is NaN, a late
        contribution counts in the mean of a later call, and no `drain` is needed: each
        element is sent with the number of its contributions, in twice the bytes, and no
        `wire_format` rounds it. For gradients, which must add up, write
        `average_gradients`.

    Returns:
      The same tree, with the shapes and dtypes of the leaves; of int32 and bool,
      float32. With `return_stats` the pair of it and this rank's `CollectiveStats`.

    Raises the errors of `psum`.
    """
    checks.check_no_groups(axis_index_groups, "pmean")
    reduced = called("pmean", tree, axis_name, arguments, of_values=True)
    return reduced.result(return_stats)


def called(
    kind: str,
    tree: Any,
    axis_name: AxisName,
    arguments: CallArguments,
    **fields: Any,
) -> Reduction:
    """Sums or averages a tree by a call with the arguments of a public function.

    Args:
      kind: the public function.
      tree: see `psum`.
      axis_name: see `psum`.
      arguments: as given to it.
      **fields: of `Call`.
    """
    call = checks.call_of(kind, axis_name, arguments, **fields)
    step, specs = arguments.get("step"), arguments.get("specs")
    return reduce_tree(tree, step, call, specs=specs)


def reduce_tree(
    tree: Any,
    step: Any,
    call: Call,
    *,
    specs: Any = None,
    rotate: bool | jax.Array | None = None,
) -> Reduction:
    """Sums or averages a tree in buckets: the body of every public function.

    Args:
      tree: see `psum`.
      step: see `CallArguments`.
      call: the description of the call; each bucket gets a suffix to its key.
      specs: see `CallArguments`.
      rotate: whether a lossy call is rotated; a bool, or bool [], equal on every rank,
        for a decision at run time. None rotates it.

    Returns:
      The reduced tree, and the statistics of its buckets.

    Raises:
      UsageError: see `psum`.
      NotInitializedError: see `psum`.
    """
    options = communicator.current(call.kind).options
    step = checks.checked_step(step)
    of_leaves = checked_specs(specs, tree, call.kind)
    size = allreduce.axis_size(call.axes)
    named, treedef = checks.named_leaves(tree, call.kind)
    traced: dict[int, Any] = {}
    results: dict[int, Any] = {}
    for i, (place, leaf) in enumerate(named):
        if isinstance(leaf, Tracer):
            traced[i] = checks.checked_leaf(leaf, place, call)
        elif call.over_replicas:
            # Their number is known when the call runs.
            constant = checks.checked_constant(leaf, place)
            dtype = jnp.int32 if isinstance(constant, int) else None
            constant = jnp.asarray(constant, dtype)
            traced[i] = checks.checked_leaf(constant, place, call)
        else:
            # A constant of the program, equal on every rank.
            results[i] = checks.checked_constant(leaf, place) * size
    if rotate is None:
        rotate = True
    sums, buckets = _sum_leaves(traced, of_leaves, step, call, options, rotate)
    results.update(sums)
    ordered = [results[i] for i in range(len(results))]
    if call.mean:
        # Floating sums of several groups are scaled to all ranks, and then joined.
        scaled = bool(call.fast or automatic_axes())
        ranks = {}
        if call.of_live:
            ranks = live_ranks(
                sums, buckets, size, scaled=scaled, replicas=call.over_replicas
            )
        ordered = [total / ranks.get(i, size) for i, total in enumerate(ordered)]
    return Reduction(jax.tree_util.tree_unflatten(treedef, ordered), buckets)


def live_ranks(
    sums: dict[int, Any],
    buckets: list[ReducedBucket],
    size: int,
    *,
    scaled: bool = False,
    replicas: bool = False,
) -> dict[int, jax.Array]:
    """Returns the number of live ranks in the call of a leaf, by its position.

    Args:
      sums: by the position of the leaf.
      buckets: of the sums.
      size: number of all ranks.
      scaled: whether the floating sums are scaled to all ranks already.
      replicas: whether the call is over all replicas, each with `size` ranks.
    """
    if scaled:
        sums = {i: x for i, x in sums.items() if x.dtype == jnp.int32}
    # The mean of integers is in float32, as that of `jax.lax.pmean`.
    dtypes = {
        i: x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
        for i, x in sums.items()
    }
    return {
        i: _stats.live_ranks(bucket.vector, size, replicas=replicas).astype(dtypes[i])
        for bucket in buckets
        for i in bucket.leaves
        if i in sums
    }


def _sum_leaves(
    leaves: dict[int, Any],
    specs: dict[int, Any],
    step: jax.Array | None,
    call: Call,
    options: Options,
    rotate: bool | jax.Array,
) -> tuple[dict[int, Any], list[ReducedBucket]]:
    """Sums leaves, by their position in the tree."""
    if options.backend == "xla":
        return {i: lax.psum(leaf, call.axes) for i, leaf in leaves.items()}, []
    parts = divided(leaves, specs)
    plan = _plan(parts, call, options)
    # The plan excludes leaves without elements. New zeros vary over no axis.
    sums = {i: jnp.zeros(x.shape, x.dtype) for i, x in leaves.items() if x.size == 0}
    buckets = []
    only_integers = all(bucket.integral for bucket in plan)
    for bucket in plan:
        members = [parts[i] for i in bucket.leaves]
        # Parameters may include counters, which are in the tree of a drain only.
        optional = call.drain and bucket.integral and not only_integers
        of_bucket = dataclasses.replace(
            call,
            key=call.key + bucket.suffix,
            drain=Drain.OF_CALLS_IF_ANY if optional else call.drain,
        )
        totals, vector = _sum_bucket(members, step, of_bucket, rotate)
        for part, total in zip(members, totals, strict=True):
            sums[part.position] = restored(part, total, leaves[part.position])
        positions = [part.position for part in members]
        buckets.append(ReducedBucket(positions, bucket.elements, vector))
    return sums, buckets


def _plan(
    parts: Sequence[Part], call: Call, options: Options
) -> tuple[bucketing.Bucket, ...]:
    """Returns the buckets of the parts that this package sends."""
    shapes = [part.sent_shape() for part in parts]
    if call.fast:
        shapes = [part_shape(shape, call) for shape in shapes]
    dtypes = [part.array.dtype for part in parts]
    return bucketing.plan_buckets(shapes, dtypes, bucket_bytes=options.bucket_bytes)


def _sum_bucket(
    members: Sequence[Part],
    step: jax.Array | None,
    call: Call,
    rotate: bool | jax.Array,
) -> tuple[list[jax.Array], jax.Array]:
    """Sums a bucket, over the fast axes by XLA; returns sums and statistics vector."""
    divisions = tuple(part.spec for part in members if part.spec is not None)
    reduce = functools.partial(allreduce.allreduce, specs=divisions, step=step)
    arrays = [part.array for part in members]
    if not call.fast:
        return _rotated_or_not(reduce, arrays, call, rotate)
    slow = dataclasses.replace(call, axes=call.slow, fast=())
    operands = [scattered(arrays, call)]
    (total,), vector = _rotated_or_not(reduce, operands, slow, rotate)
    return gathered(total, vector, arrays, call)


def _rotated_or_not(
    reduce: Callable[..., Any],
    operands: list[jax.Array],
    call: Call,
    rotate: bool | jax.Array,
) -> tuple[list[jax.Array], jax.Array]:
    """Sums a bucket, rotated or not; returns the sums and the statistics vector."""
    rotated = dataclasses.replace(call, rotated=True)
    if not isinstance(rotate, jax.Array):
        return reduce(
            operands, call=rotated if rotate and call.mode == "lossy" else call
        )
    # Two collectives, since a rotated bucket is longer. The condition is around each
    # bucket, not all of them, so that the first bucket does not wait for the last leaf.
    rotated = dataclasses.replace(rotated, key=f"{rotated.key} rotated")
    return lax.cond(
        rotate,
        functools.partial(reduce, call=rotated),
        functools.partial(reduce, call=call),
        operands,
    )
