"""`allreduce_p`: a sum over mapped axes as a JAX primitive, and all of its rules.

The primitive is pure for JAX, which permits `jax.checkpoint`, `scan` and `cond`, and
has a side effect for XLA only, which prevents XLA from merging equal calls or moving
them out of a loop. Its operands are (rank, step, *leaves), its results (*sums,
statistics):

  rank   int32 [2]: the index of the group of ranks, and of the rank in it. An operand,
         so that the compiled program is the same on every rank.
  step   int32 []: the number of the call, or -1 if the session counts.
  leaves of one dtype.

In a region where the compiler shards some axes by itself, `specs` divides the leaves
over these axes. The rules see whole leaves; the lowering makes a region where all axes
are manual.

Sums and statistics follow the types of `jax.lax.psum`: a sum over an axis does not vary
over that axis.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import PartitionSpec

from jax_optireduce import _native, _stats
from jax_optireduce._errors import UsageError
from jax_optireduce._jax import lowering, shard_types
from jax_optireduce._program import (
    blocks,
    decisions,
    identity,
    leaf_specs,
    native_calls,
    present,
    program_checks,
    rotation,
    rules,
)
from jax_optireduce._program.call import DEFERRING_MODES, REPLICAS, Call, Drain
from jax_optireduce._session import communicator

_MESH_NEEDED = (
    "a call over REPLICAS in a program for several devices needs their mesh: call the "
    "program under jax.set_mesh(mesh), and give the call specs=; or make the call "
    "inside jax.shard_map."
)

_Specs = tuple[PartitionSpec, ...]

allreduce_p = Primitive("optireduce_allreduce")
allreduce_p.multiple_results = True

# The identity, with another type.
typed_as_sum_p = Primitive("optireduce_typed_as_sum")


def allreduce(
    leaves: Sequence[jax.Array],
    specs: tuple[PartitionSpec, ...],
    step: jax.Array | None,
    call: Call,
) -> tuple[list[jax.Array], jax.Array]:
    """Sums leaves; the callers have validated the arguments.

    Args:
      leaves: at least one; all of one dtype.
      specs: of the leaves; empty where all axes are manual.
      step: int32 [], or None if the session counts the calls.
      call: the description of the call; this function sets `typed` and `counted`.

    Returns:
      The sums, and the statistics vector, float32 [VECTOR_SIZE].
    """
    *sums, vector = allreduce_p.bind(
        *operands(leaves, step, call),
        specs=specs,
        call=dataclasses.replace(call, counted=step is None, typed=is_typed(call.axes)),
    )
    return sums, vector


def operands(
    leaves: Sequence[jax.Array], step: jax.Array | None, call: Call
) -> list[jax.Array]:
    """Returns the operands of a call: rank, step and leaves."""
    number = jnp.asarray(-1 if step is None else step, jnp.int32)
    return [group_and_rank(call.axes), number, *leaves]


def typed_as_sum(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Returns `x`, typed as a sum over `axes`; ranks may hold different values.

    The result has no gradient.
    """
    return typed_as_sum_p.bind(lax.stop_gradient(x), axes=axes)


def mapped_axes(axes: Sequence[str]) -> tuple[str, ...]:
    """Returns the axes of the mesh among `axes`; the others belong to a `vmap`."""
    mesh = shard_types.mesh_axes()
    return tuple(axis for axis in axes if axis in mesh and mesh[axis][1])


def axis_size(axes: Sequence[str]) -> int:
    """Returns the number of ranks along `axes`: those of this replica."""
    return lax.axis_size(tuple(axis for axis in axes if axis != REPLICAS))


def never(axes: Sequence[str]) -> jax.Array:
    """Returns False, bool [], of which the compiler does not know the value."""
    of_mesh = mapped_axes(axes)
    if of_mesh:
        return lax.axis_index(of_mesh) < 0
    return lax.optimization_barrier(jnp.bool_(False))


def is_typed(axes: Sequence[str]) -> bool:
    """Whether JAX tracks variation over `axes` in this context (check_vma=True)."""
    mapped = mapped_axes(axes)
    return bool(mapped) and bool(shard_types.varying_axes(lax.axis_index(mapped)))


def fixed_axes(x: Any, axes: Sequence[str]) -> tuple[str, ...]:
    """Returns the axes among `axes` over which `x` does not vary for JAX."""
    if not is_typed(axes):
        return ()
    varying = shard_types.varying_axes(x)
    return tuple(axis for axis in mapped_axes(axes) if axis not in varying)


def made_varying(x: Any, axes: Sequence[str]) -> Any:
    """Returns `x`, typed as varying over `axes` if JAX tracks variation."""
    fixed = fixed_axes(x, axes)
    return lax.pcast(x, fixed, to="varying") if fixed else x


def group_and_rank(axes: tuple[str, ...]) -> jax.Array:
    """Returns the group of this device, and its rank in the group; int32 [2]."""
    mapped = mapped_axes(axes)
    # All axes are manual in the region of a lowering.
    if not (mapped or REPLICAS in axes) or leaf_specs.automatic_axes():
        return jnp.zeros(2, jnp.int32)
    others = tuple(
        name
        for name, (_, manual) in shard_types.mesh_axes().items()
        if manual and name not in axes
    )
    group = lax.axis_index(others) if others else jnp.int32(0)
    rank = lax.axis_index(mapped) if mapped else jnp.int32(0)
    return jnp.stack([group, rank])


def _abstract_eval(
    rank: Any, _step: Any, *leaves: Any, specs: _Specs, call: Call
) -> list[Any]:
    del specs
    sums = [shard_types.reduced_type(leaf, call.axes) for leaf in leaves]
    return [*sums, shard_types.stats_type(rank, _stats.VECTOR_SIZE)]


def derived(call: Call, how: str) -> Call:
    """Returns the call of a derivative; its key differs, as both calls may run."""
    return dataclasses.replace(call, key=f"{call.key}:{how}", derived=True)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, specs: _Specs, call: Call
) -> tuple[Sequence[Any], list[Any]]:
    """Sums the tangents by a call of the same kind."""
    rank, step, *_ = primals

    def send(live: Mapping[int, Any]) -> list[Any]:
        of_live = _of(live, specs)
        of_jvp = derived(call, "jvp")
        return allreduce_p.bind(rank, step, *live.values(), specs=of_live, call=of_jvp)

    return rules.jvp(allreduce_p.bind(*primals, specs=specs, call=call), tangents, send)


def _of(live: Iterable[int], specs: _Specs) -> _Specs:
    """Returns the specs of some of the leaves."""
    return tuple(specs[i] for i in live) if specs else ()


def _transpose(
    cotangents: Sequence[Any],
    rank: Any,
    step: Any,
    *leaves: Any,
    specs: _Specs,
    call: Call,
) -> list[Any]:
    """Follows `jax.lax.psum`: a sum if JAX does not track variation, else no call.

    With tracking, the cotangent is the same on every rank and only its type changes.
    Without, JAX treats every value as varying, so the transpose of a sum is a sum.
    """

    def send(live: Mapping[int, Any]) -> list[Any]:
        if call.typed:
            mapped = mapped_axes(call.axes)
            return [lax.pcast(ct, mapped, to="varying") for ct in live.values()]
        of_live = _of(live, specs)
        transposed = derived(call, "transpose")
        return allreduce_p.bind(
            rank, step, *live.values(), specs=of_live, call=transposed
        )

    return rules.transpose(cotangents, leaves, send)


def _batch(
    axis_data: Any,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    specs: _Specs,
    call: Call,
) -> tuple[list[Any], list[Any]]:
    """Sums locally over a named `vmap` axis; other batch axes are part of the leaf."""
    rank, step, *leaves = args
    leaf_dims = dims[2:]
    rules.check_step(dims)
    if axis_data.name not in call.axes:
        # The rank belongs to the mesh, so no `vmap` axis maps it.
        batched = tuple(map(leaf_specs.batched, specs, leaf_dims))
        results = allreduce_p.bind(rank, step, *leaves, specs=batched, call=call)
        return results, [*leaf_dims, None]
    local = rules.summed(leaves, leaf_dims, axis_data.size)
    remaining = tuple(axis for axis in call.axes if axis != axis_data.name)
    if not remaining:
        return [*local, _stats.empty_vector()], [None] * (len(local) + 1)
    results = allreduce_p.bind(
        group_and_rank(remaining),
        step,
        *local,
        specs=specs,
        call=dataclasses.replace(call, axes=remaining, typed=is_typed(remaining)),
    )
    return results, [None] * len(results)


def lower(ctx: Any, *operands: Any, platform: str, specs: _Specs, call: Call) -> Any:
    """Emits the call, and the rotation of a lossy call around it."""
    way = native_calls.way(platform, call.kind)
    if call.derived and not call.drain:
        _check_derivative(call)
    program_checks.check(ctx, call)
    leaves = ctx.avals_in[2:]
    if specs:
        sizes = lowering.abstract_mesh(ctx).shape
        shapes = leaf_specs.sent_shapes([x.shape for x in leaves], specs, sizes)
        leaves = [jax.ShapeDtypeStruct(shape, leaves[0].dtype) for shape in shapes]
    if call.over_replicas and not specs and lowering.devices_of_compiler(ctx) > 1:
        raise UsageError(_MESH_NEEDED)
    attributes = call_attributes(ctx, leaves, call)
    # Behind group, rank and number.
    kept = {i - 2 for i in lowering.kept_operands(ctx) if i > 1}

    def program(rank: jax.Array, step: jax.Array, *leaves: jax.Array) -> list[Any]:
        number = None if call.counted else step
        if call.operation != "allreduce":
            return blocks.reduce(rank, number, leaves, call, attributes, way)
        if call.rotated and not call.drain:
            return rotation.reduce(rank, number, leaves, attributes, way)
        if call.present:
            size = int(attributes["group_size"])
            return present.reduce(rank, number, leaves, attributes, way, size)
        return way.reduce(rank, number, leaves, attributes, kept)

    if specs:
        return _lower_divided(ctx, operands, program, specs, call)
    return mlir.lower_fun(program, multiple_results=True)(
        lowering.without_manual_types(ctx), *operands
    )


def call_attributes(ctx: Any, leaves: Sequence[Any], call: Call) -> dict[str, Any]:
    """Returns the attributes of a call's handler.

    Numbers the calls of one key in a program, so for each lowered equation once.

    Args:
      ctx: of the lowering.
      leaves: types of the leaves, as on a device.
      call: the description of the call.
    """
    if call.mode in decisions.DIFFERING_MODES:
        decisions.check(ctx)
    drain = call.drain
    processes, devices = _groups(ctx, call.axes)
    # Drains are counted separately from calls: in any module, the first drain matches
    # the first call.
    ordinal = lowering.next_ordinal(ctx, f"{call.key} drain" if drain else call.key)
    if drain and ordinal:
        # Its call may be in a branch that was not executed.
        drain = Drain.OF_CALLS_IF_ANY
    name = identity.numbered(call.key, ordinal)
    return {
        "communicator": communicator.NAME,
        "name": identity.collective_name(name, devices),
        # Common to all calls with one key in one program.
        "key": call.key,
        "description": identity.describe(name, leaves, call, devices.shape[1]),
        "operation": call.operation,
        "mode": call.mode,
        "wire_format": call.wire_format,
        # Not part of the fingerprint, which calls and drains share.
        "drain": np.int64(drain),
        # A mean of those that have come is right without absent ranks.
        "averages": call.mean and not call.present,
        "pairs": call.present,
        "fingerprint": np.int64(identity.fingerprint(leaves, call, devices)),
        "group_processes": processes.astype(np.int32).reshape(-1),
        "group_size": np.int64(processes.shape[1]),
        "clusters": np.array(call.clusters, np.int32),
        "spare": np.int64(call.spare),
    }


def _lower_divided(
    ctx: Any,
    operands: Sequence[Any],
    program: Callable[..., list[Any]],
    specs: _Specs,
    call: Call,
) -> Any:
    """Emits a program in a region where all axes are manual.

    In front of the primitive such a region would have no devices, if those of the outer
    one are given by `mesh=`; here the lowering knows them.
    """
    mesh = lowering.abstract_mesh(ctx)
    axes = lowering.automatic_axes(ctx, mesh.shape)

    def local(step: jax.Array, *leaves: jax.Array) -> list[Any]:
        sent = leaf_specs.joined(leaves, specs, axes)
        *sums, vector = program(group_and_rank(call.axes), step, *sent)
        if call.of_live:
            # The groups can have different numbers of live ranks.
            size = axis_size(mapped_axes(call.axes))
            sums = [
                _stats.scaled_to_all(x, vector, size, replicas=call.over_replicas)
                for x in sums
            ]
        sums = leaf_specs.separated(sums, leaves, specs, axes)
        return [*sums, _stats.combined(lax.all_gather(vector, axes))]

    everywhere = PartitionSpec()

    def outer(_rank: jax.Array, step: jax.Array, *leaves: jax.Array) -> list[Any]:
        with jax.sharding.use_abstract_mesh(mesh):
            return jax.shard_map(
                local,
                in_specs=(everywhere, *specs),
                out_specs=[*specs, everywhere],
                axis_names=set(axes),
                check_vma=False,
            )(step, *leaves)

    return mlir.lower_fun(outer, multiple_results=True)(ctx, *operands)


def _check_derivative(call: Call) -> None:
    """Raises `UsageError` if late data of a derivative would be lost.

    The check is at compilation: the result of the JVP rule may be transposed, and not
    run.
    """
    if call.mode not in DEFERRING_MODES:
        return
    name = call.key.split(":jvp", maxsplit=1)[0].split(":transpose", maxsplit=1)[0]
    raise UsageError(
        f"{name!r} in mode {call.mode!r} is differentiated, and its derivative is "
        "summed over the ranks too: by a call that no drain reaches, so its late data "
        "would be lost. Write mode='exact' for it; or, to average gradients, "
        "sync_in_backward or average_gradients, which are not differentiated "
        "themselves; or jax.lax.stop_gradient around values that are only reported."
    )


def _groups(ctx: Any, axes: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the process of each rank of each group, and the id of its device.

    Both are [groups, group size]. In a call over replicas each process has a device of
    each rank, and devices are numbered by their places: those of a replica have ids of
    its own.
    """
    if REPLICAS not in axes:
        devices = _devices(lowering.lowering_mesh(ctx), axes)
        processes = np.vectorize(lambda x: x.process_index, otypes=[int])(devices)
        return processes, np.vectorize(lambda x: x.id, otypes=[int])(devices)
    sizes = lowering.abstract_mesh(ctx).shape
    ranks = math.prod(sizes.get(axis, 1) for axis in axes)
    groups = math.prod(sizes.values()) // ranks
    return np.full((groups, ranks), _native.EACH_PROCESS), np.arange(groups)[:, None]


def _devices(mesh: jax.sharding.Mesh, axes: Sequence[str]) -> np.ndarray:
    """Returns the device of each rank of each group, [groups, group size]."""
    names = list(mesh.axis_names)
    others = [name for name in names if name not in axes]
    order = [names.index(name) for name in (*others, *axes)]
    devices = np.transpose(mesh.devices, order)
    group_size = int(np.prod([mesh.shape[axis] for axis in axes]))
    return devices.reshape(-1, group_size)


# The registration tables: the handlers of XLA:CPU by name, and the rules of
# transformations.
for _target, _capsule in _native.registrations().items():
    jax.ffi.register_ffi_target(_target, _capsule, platform="cpu")

rules.register(
    allreduce_p,
    types=_abstract_eval,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=lower,
    platforms=native_calls.PLATFORMS,
)

typed_as_sum_p.def_abstract_eval(lambda x, *, axes: shard_types.reduced_type(x, axes))
batching.primitive_batchers[typed_as_sum_p] = lambda args, dims, *, axes: (
    typed_as_sum_p.bind(*args, axes=axes),
    dims[0],
)
mlir.register_lowering(typed_as_sum_p, lambda _, x, **__: [x])
