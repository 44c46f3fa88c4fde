"""`psum_scatter_p` and `all_gather_p`: the stages of an allreduce as JAX primitives.

Both are in normal form: the ranks are the first dimension. `psum_scatter_p` takes
leaves [ranks, ...] and returns [...], `all_gather_p` the reverse; each is the transpose
of the other. The operands (rank, step, *leaves) and the results (*leaves, statistics)
are those of `allreduce_p`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_optireduce import _stats
from jax_optireduce._errors import UsageError
from jax_optireduce._jax import shard_types
from jax_optireduce._program import allreduce
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
        *_operands(leaves, step, call), call=_counted(call, step)
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
        *_operands(leaves, step, call),
        call=_counted(call, step),
        ranks=lax.axis_size(call.axes),
        varying=varying,
    )
    return gathered, vector


def _operands(
    leaves: Sequence[jax.Array], step: jax.Array | None, call: Call
) -> list[jax.Array]:
    number = jnp.asarray(-1 if step is None else step, jnp.int32)
    return [allreduce.group_and_rank(call.axes), number, *leaves]


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
) -> tuple[list[Any], list[Any]]:
    """Sends the tangents by a call of the same kind."""
    rank, step, *_ = primals
    results = primitive.bind(*primals, call=call, **parameters)
    tangents_out = [ad.Zero(jax.typeof(r).to_tangent_aval()) for r in results]
    live = {i: t for i, t in enumerate(tangents[2:]) if not isinstance(t, ad.Zero)}
    if live:
        sent = primitive.bind(
            rank,
            step,
            *live.values(),
            call=_of_operation(call, call.operation, "jvp"),
            **parameters,
        )
        for i, tangent in zip(live, sent, strict=False):
            tangents_out[i] = tangent
    return results, tangents_out


def _live(
    cotangents: Sequence[Any], leaves: Sequence[Any]
) -> tuple[dict[int, Any], list[Any]]:
    """Returns the cotangents that are not zero, and the zeros of the others."""
    live = {
        i: ct
        for i, (ct, leaf) in enumerate(zip(cotangents[:-1], leaves, strict=True))
        if ad.is_undefined_primal(leaf) and not isinstance(ct, ad.Zero)
    }
    zeros = [
        ad.Zero(leaf.aval) if ad.is_undefined_primal(leaf) else None for leaf in leaves
    ]
    return live, zeros


def _transpose_scatter(
    cotangents: Sequence[Any], rank: Any, step: Any, *leaves: Any, call: Call
) -> list[Any]:
    live, results = _live(cotangents, leaves)
    if live:
        gathered = all_gather_p.bind(
            rank,
            step,
            *live.values(),
            call=_of_operation(call, "all_gather", "transpose"),
            ranks=leaves[next(iter(live))].aval.shape[0],
            varying=True,
        )
        for i, ct in zip(live, gathered, strict=False):
            results[i] = ct
    return [None, None, *results]


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
    live, results = _live(cotangents, leaves)
    if live and not varying:
        # The cotangent is the same on every rank, and a rank contributed its part.
        mapped = allreduce.mapped_axes(call.axes)
        for i, ct in live.items():
            own = lax.pcast(ct, mapped, to="varying") if mapped else ct
            results[i] = lax.dynamic_index_in_dim(own, rank[1], keepdims=False)
    elif live:
        parts = psum_scatter_p.bind(
            rank,
            step,
            *live.values(),
            call=_of_operation(call, "reduce_scatter", "transpose"),
        )
        for i, ct in zip(live, parts, strict=False):
            results[i] = ct
    return [None, None, *results]


# --- Batches -------------------------------------------------------------------------


def _check_batch(axis_data: Any, dims: Sequence[Any], call: Call) -> None:
    if dims[1] is not None:
        raise UsageError(
            "`step` was mapped by jax.vmap, but all elements of a batch are in one "
            "call; pass a step that does not depend on the mapped axis."
        )
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
        totals = [
            leaf * axis_data.size if dim is None else leaf.sum(dim).astype(leaf.dtype)
            for leaf, dim in zip(leaves, dims[2:], strict=True)
        ]
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


# The registration table.
for _primitive_of, _types, _transpose, _batch in (
    (psum_scatter_p, _scattered_types, _transpose_scatter, _batch_scatter),
    (all_gather_p, _gathered_types, _transpose_gather, _batch_gather),
):
    _primitive_of.def_abstract_eval(_types)
    ad.primitive_jvps[_primitive_of] = (
        lambda primals, tangents, *, _of=_primitive_of, **parameters: _jvp(
            _of, primals, tangents, **parameters
        )
    )
    ad.primitive_transposes[_primitive_of] = _transpose
    batching.fancy_primitive_batchers[_primitive_of] = _batch
    # Not cacheable: see `allreduce`.
    mlir.register_lowering(_primitive_of, allreduce.lower_elsewhere, cacheable=False)
    for _platform in allreduce.PLATFORMS:
        mlir.register_lowering(
            _primitive_of,
            functools.partial(_lower, platform=_platform),
            platform=_platform,
            cacheable=False,
        )
