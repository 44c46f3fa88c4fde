"""`psum_scatter_p` and `all_gather_p`: the stages of an allreduce as JAX primitives.

Both are in normal form: the ranks are the first dimension. `psum_scatter_p` takes
leaves [ranks, ...] and returns [...], `all_gather_p` the reverse; each is the transpose
of the other. The operands (rank, step, *leaves) and the results (*leaves, statistics)
are those of `allreduce_p`.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive

from jax_optireduce import _stats
from jax_optireduce._errors import UsageError
from jax_optireduce._jax import shard_types
from jax_optireduce._program import allreduce, native_calls, rules
from jax_optireduce._program.call import Call

psum_scatter_p = Primitive("optireduce_psum_scatter")
psum_scatter_p.multiple_results = True

all_gather_p = Primitive("optireduce_all_gather")
all_gather_p.multiple_results = True


def psum_scatter(
    leaves: Sequence[jax.Array], step: jax.Array | None, call: Call
) -> tuple[list[jax.Array], jax.Array]:
    """Sums leaves [ranks, ...] of one dtype, and returns the part of this rank.

    Args:
      leaves: at least one.
      step: int32 [], or None if the session counts the calls.
      call: the description of the call; this function sets `counted`.

    Returns:
      The parts [...], and the statistics vector, float32 [VECTOR_SIZE].
    """
    *parts, vector = psum_scatter_p.bind(
        *allreduce.operands(leaves, step, call), call=_counted(call, step)
    )
    return parts, vector


def all_gather(
    leaves: Sequence[jax.Array], step: jax.Array | None, call: Call, *, varying: bool
) -> tuple[list[jax.Array], jax.Array]:
    """Returns the leaves of all ranks, [ranks, ...].

    Args:
      leaves: at least one; of one dtype if the wire format rounds.
      step: see `psum_scatter`.
      call: see `psum_scatter`.
      varying: whether JAX types the results as varying over the axes.

    Returns:
      The leaves, and the statistics vector, float32 [VECTOR_SIZE].
    """
    *gathered, vector = all_gather_p.bind(
        *allreduce.operands(leaves, step, call),
        call=_counted(call, step),
        ranks=lax.axis_size(call.axes),
        varying=varying,
    )
    return gathered, vector


def _counted(call: Call, step: jax.Array | None) -> Call:
    return dataclasses.replace(call, counted=step is None)


def _of_operation(call: Call, operation: str, how: str) -> Call:
    """Returns the call of a derivative; that of an all_gather is exact."""
    derived = dataclasses.replace(allreduce.derived(call, how), operation=operation)
    if operation == call.operation:
        return derived
    return dataclasses.replace(derived, mode="exact", rotated=False)


# --- Types ---------------------------------------------------------------------------


def _scattered_types(rank: Any, _step: Any, *leaves: Any, call: Call) -> list[Any]:
    del call
    parts = [leaf.update(shape=leaf.shape[1:], weak_type=False) for leaf in leaves]
    return [*parts, shard_types.stats_type(rank, _stats.VECTOR_SIZE)]


def _gathered_types(
    rank: Any, _step: Any, *leaves: Any, call: Call, ranks: int, varying: bool
) -> list[Any]:
    gathered = [
        leaf.update(shape=(ranks, *leaf.shape), weak_type=False) for leaf in leaves
    ]
    if not varying:
        gathered = [shard_types.reduced_type(leaf, call.axes) for leaf in gathered]
    return [*gathered, shard_types.stats_type(rank, _stats.VECTOR_SIZE)]


# --- Derivatives ---------------------------------------------------------------------


def _jvp(
    primitive: Primitive,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    call: Call,
    **parameters: Any,
) -> tuple[Sequence[Any], list[Any]]:
    """Sends the tangents by a call of the same kind."""
    rank, step, *_ = primals
    of_jvp = _of_operation(call, call.operation, "jvp")

    def send(live: Mapping[int, Any]) -> list[Any]:
        return primitive.bind(rank, step, *live.values(), call=of_jvp, **parameters)

    results = primitive.bind(*primals, call=call, **parameters)
    return rules.jvp(results, tangents, send)


def _transpose_scatter(
    cotangents: Sequence[Any], rank: Any, step: Any, *leaves: Any, call: Call
) -> list[Any]:
    def send(live: Mapping[int, Any]) -> list[Any]:
        return all_gather_p.bind(
            rank,
            step,
            *live.values(),
            call=_of_operation(call, "all_gather", "transpose"),
            ranks=leaves[next(iter(live))].aval.shape[0],
            varying=True,
        )

    return rules.transpose(cotangents, leaves, send)


def _transpose_gather(
    cotangents: Sequence[Any],
    rank: Any,
    step: Any,
    *leaves: Any,
    call: Call,
    ranks: int,
    varying: bool,
) -> list[Any]:
    del ranks

    def part(ct: Any) -> Any:
        # The cotangent is the same on every rank, and a rank contributed its part.
        mapped = allreduce.mapped_axes(call.axes)
        own = lax.pcast(ct, mapped, to="varying") if mapped else ct
        return lax.dynamic_index_in_dim(own, rank[1], keepdims=False)

    def send(live: Mapping[int, Any]) -> list[Any]:
        if not varying:
            return [part(ct) for ct in live.values()]
        scattering = _of_operation(call, "reduce_scatter", "transpose")
        return psum_scatter_p.bind(rank, step, *live.values(), call=scattering)

    return rules.transpose(cotangents, leaves, send)


# --- Batches -------------------------------------------------------------------------


def _check_batch(axis_data: Any, dims: Sequence[Any], call: Call) -> None:
    rules.check_step(dims)
    if axis_data.name in call.axes and call.axes != (axis_data.name,):
        raise UsageError(
            f"{call.kind} over the axes {call.axes}: the axis {axis_data.name!r} of a "
            "jax.vmap cannot be combined with others; make one call for each axis."
        )


def _batch_scatter(
    axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, call: Call
) -> tuple[list[Any], list[Any]]:
    _check_batch(axis_data, dims, call)
    rank, step, *leaves = args
    if axis_data.name in call.axes:
        # Element i of the batch is rank i.
        totals = rules.summed(leaves, dims[2:], axis_data.size)
        return [*totals, _stats.empty_vector()], [*[0] * len(totals), None]
    moved = [
        leaf if dim is None else jnp.moveaxis(leaf, dim, 1)
        for leaf, dim in zip(leaves, dims[2:], strict=True)
    ]
    results = psum_scatter_p.bind(rank, step, *moved, call=call)
    return results, [*[None if d is None else 0 for d in dims[2:]], None]


def _batch_gather(
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    call: Call,
    ranks: int,
    varying: bool,
) -> tuple[list[Any], list[Any]]:
    _check_batch(axis_data, dims, call)
    rank, step, *leaves = args
    moved = [
        leaf if dim is None else jnp.moveaxis(leaf, dim, 0)
        for leaf, dim in zip(leaves, dims[2:], strict=True)
    ]
    if axis_data.name in call.axes:
        whole = [
            jnp.broadcast_to(leaf, (ranks, *leaf.shape)) if dim is None else leaf
            for leaf, dim in zip(moved, dims[2:], strict=True)
        ]
        return [*whole, _stats.empty_vector()], [None] * (len(whole) + 1)
    results = all_gather_p.bind(
        rank, step, *moved, call=call, ranks=ranks, varying=varying
    )
    return results, [*[None if d is None else 1 for d in dims[2:]], None]


# --- Lowering ------------------------------------------------------------------------


def _lower(ctx: Any, *operands: Any, platform: str, call: Call, **_: Any) -> Any:
    return allreduce.lower(ctx, *operands, platform=platform, specs=(), call=call)


for _primitive_of, _types, _transpose, _batch in (
    (psum_scatter_p, _scattered_types, _transpose_scatter, _batch_scatter),
    (all_gather_p, _gathered_types, _transpose_gather, _batch_gather),
):
    rules.register(
        _primitive_of,
        types=_types,
        jvp=functools.partial(_jvp, _primitive_of),
        transpose=_transpose,
        batch=_batch,
        lower=_lower,
        platforms=native_calls.PLATFORMS,
    )
