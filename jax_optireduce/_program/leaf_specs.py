"""Leaves in programs whose compiler shards some axes by itself.

In `jax.shard_map(..., axis_names={"data"})` the other axes of the mesh are automatic. A
call sends the part of a leaf that a device holds. So each leaf is divided over all
automatic axes: by the specs of the user, by the type of the leaf, or else along its
largest dimension.

Leaves that no dimension divides stay whole. The lowering of a call makes one vector of
them, of which each device sends a part, and puts the parts together by one collective.
Sent whole by each device, copies on the devices of a process would receive different
results.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_optireduce._errors import UsageError
from jax_optireduce._jax import processes, shard_types
from jax_optireduce._program.host_computation import split


class Part(NamedTuple):
    """One operand of a call: a leaf.

    Attributes:
      array: the leaf.
      spec: its division over the automatic axes; without any if it stays whole; None
        without such axes.
      position: of the leaf in the tree.
    """

    array: jax.Array
    spec: PartitionSpec | None
    position: int

    def sent_shape(self) -> tuple[int, ...]:
        """Returns the shape that a device sends."""
        if self.spec is None:
            return self.array.shape
        (shape,) = sent_shapes([self.array.shape], [self.spec], automatic_axes())
        return shape


def _is_whole(spec: PartitionSpec) -> bool:
    return not any(_entries(spec))


def sent_shapes(
    shapes: Sequence[Sequence[int]],
    specs: Sequence[PartitionSpec],
    sizes: Mapping[str, int],
) -> list[tuple[int, ...]]:
    """Returns the shapes that `joined` returns.

    Args:
      shapes: of the leaves.
      specs: of the leaves.
      sizes: of all axes of the mesh.
    """
    sent, whole = [], 0
    for shape, spec in zip(shapes, specs, strict=True):
        if _is_whole(spec):
            whole += math.prod(shape)
            continue
        local = list(shape)
        for dimension, axes in enumerate(_entries(spec)):
            local[dimension] //= math.prod(sizes[axis] for axis in axes)
        sent.append(tuple(local))
    devices = math.prod(sizes[axis] for axis in automatic_axes())
    return [*sent, (-(-whole // devices),)] if whole else sent


def joined(
    leaves: Sequence[jax.Array], specs: Sequence[PartitionSpec], axes: tuple[str, ...]
) -> list[jax.Array]:
    """Returns the arrays to send, in a region where all axes are manual.

    Args:
      leaves: as a device holds them; of one dtype.
      specs: of the leaves.
      axes: the automatic axes of the region around this one.

    Returns:
      The divided leaves, and this device's part of the vector of the others.
    """
    divided = [x for x, spec in zip(leaves, specs, strict=True) if not _is_whole(spec)]
    whole = [
        x.reshape(-1) for x, spec in zip(leaves, specs, strict=True) if _is_whole(spec)
    ]
    if not whole:
        return divided
    vector = jnp.concatenate(whole) if len(whole) > 1 else whole[0]
    vector = jnp.pad(vector, (0, -vector.size % lax.axis_size(axes)))
    size = vector.size // lax.axis_size(axes)
    part = lax.dynamic_slice_in_dim(vector, lax.axis_index(axes) * size, size)
    return [*divided, part]


def separated(
    sums: Sequence[jax.Array],
    leaves: Sequence[jax.Array],
    specs: Sequence[PartitionSpec],
    axes: tuple[str, ...],
) -> list[jax.Array]:
    """Returns the sums of the leaves, from those of the arrays of `joined`."""
    whole = [_is_whole(spec) for spec in specs]
    if not any(whole):
        return list(sums)
    *divided, part = sums
    vector = lax.all_gather(part, axes, tiled=True)
    undivided = [x for x, is_whole in zip(leaves, whole, strict=True) if is_whole]
    parts = iter(split(vector[: sum(x.size for x in undivided)], undivided))
    rest = iter(divided)
    return [next(parts if is_whole else rest) for is_whole in whole]


def batched(spec: PartitionSpec, dimension: int | None) -> PartitionSpec:
    """Returns the spec of a leaf with a batch dimension, which is not divided."""
    if dimension is None:
        return spec
    entries = list(spec)
    entries += [None] * (dimension - len(entries))
    return PartitionSpec(*entries[:dimension], None, *entries[dimension:])


def automatic_axes() -> dict[str, int]:
    """Returns the size of each axis that the compiler shards by itself.

    Empty outside a mesh, and where all axes are manual or of size 1.
    """
    mesh = shard_types.mesh_axes()
    # Replicas make calls in programs that are all the compiler's.
    if not any(manual for _, manual in mesh.values()) and not processes.is_replica():
        return {}
    return {name: n for name, (n, manual) in mesh.items() if n > 1 and not manual}


def checked_specs(specs: Any, tree: Any, kind: str) -> dict[int, PartitionSpec | None]:
    """Returns the spec of each leaf of a tree, by its position.

    Args:
      specs: a tree, or a prefix of one, of PartitionSpec, NamedSharding or None.
      tree: the tree of a call.
      kind: the public function.

    Raises:
      UsageError: the specs do not fit the tree.
    """
    leaves = jax.tree.leaves(tree)
    if specs is None:
        return dict.fromkeys(range(len(leaves)))
    try:
        full = jax.tree.broadcast(specs, tree, is_leaf=_is_spec)
    except ValueError as error:
        raise UsageError(
            f"{kind} needs specs as a tree like the leaves, or a prefix of it: {error}"
        ) from error
    found = jax.tree.leaves(full, is_leaf=_is_spec)
    return {
        i: _checked_spec(spec, leaf, kind)
        for i, (spec, leaf) in enumerate(zip(found, leaves, strict=True))
    }


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, (PartitionSpec, NamedSharding))


def _checked_spec(spec: Any, leaf: Any, kind: str) -> PartitionSpec | None:
    if isinstance(spec, NamedSharding):
        spec = spec.spec
    if spec is None:
        return None
    if not isinstance(spec, PartitionSpec):
        raise UsageError(
            f"{kind} needs specs of jax.sharding.PartitionSpec, NamedSharding or "
            f"None, got {spec!r}."
        )
    if len(spec) > jnp.ndim(leaf):
        raise UsageError(
            f"{kind} got the spec {spec}, which has {len(spec)} dimensions, its leaf "
            f"of shape {list(jnp.shape(leaf))} has {jnp.ndim(leaf)}."
        )
    known = shard_types.mesh_axes()
    for axis in (axis for axes in _entries(spec) for axis in axes):
        if known and axis not in known:
            raise UsageError(
                f"{kind} got the spec {spec}, which names the axis {axis!r}; the axes "
                f"of the mesh are {', '.join(map(str, known))}."
            )
    return spec


def divided(
    leaves: Mapping[int, jax.Array], specs: Mapping[int, PartitionSpec | None]
) -> list[Part]:
    """Divides leaves over the automatic axes.

    Args:
      leaves: arrays, by their position in the tree.
      specs: of the leaves, see `checked_specs`.

    Returns:
      The operands; each leaf with elements is in one.
    """
    filled = {i: leaf for i, leaf in leaves.items() if leaf.size}
    axes = automatic_axes()
    if not axes:
        return [Part(leaf, None, i) for i, leaf in filled.items()]
    divisions = {i: _division(leaf, specs[i], axes) for i, leaf in filled.items()}
    return [Part(_resharded(filled[i], spec), spec, i) for i, spec in divisions.items()]


def restored(part: Part, total: jax.Array, like: jax.Array) -> jax.Array:
    """Returns the sum of a leaf, with the explicit sharding of the leaf."""
    if part.spec is None:
        return total
    return _resharded(total, _explicit_spec(like))


def _division(
    leaf: jax.Array, given: PartitionSpec | None, axes: Mapping[str, int]
) -> PartitionSpec:
    """Returns a spec with all automatic axes, or without any: the leaf stays whole."""
    entries: list[list[str]] = [[] for _ in leaf.shape]
    local = list(leaf.shape)

    def divide(dimension: int, axis: str) -> bool:
        if local[dimension] % axes[axis]:
            return False
        local[dimension] //= axes[axis]
        entries[dimension].append(axis)
        return True

    missing = dict.fromkeys(axes)
    typed = _explicit_spec(leaf)
    for spec in (typed, given or PartitionSpec()):
        for dimension, names in enumerate(_entries(spec)):
            for axis in names:
                if axis in missing and divide(dimension, axis):
                    del missing[axis]
    for axis in missing:
        by_size = sorted(range(leaf.ndim), key=lambda i: local[i], reverse=True)
        if not any(divide(dimension, axis) for dimension in by_size):
            return PartitionSpec()
    return PartitionSpec(*(tuple(names) if names else None for names in entries))


def _entries(spec: PartitionSpec) -> list[tuple[str, ...]]:
    """Returns the axes of each dimension."""
    return [
        () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for entry in spec
    ]


def _explicit_axes() -> frozenset[str]:
    mesh = jax.sharding.get_abstract_mesh()
    return frozenset(mesh.explicit_axes)


def _explicit_spec(leaf: jax.Array) -> PartitionSpec:
    """Returns the division in the type of a leaf."""
    return _only_explicit(jax.typeof(leaf).sharding.spec)


def _only_explicit(spec: PartitionSpec) -> PartitionSpec:
    explicit = _explicit_axes()
    kept = [tuple(a for a in names if a in explicit) for names in _entries(spec)]
    return PartitionSpec(*(names or None for names in kept))


def _resharded(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """Returns `x`, divided over the explicit axes of a spec."""
    if not _explicit_axes():
        return x
    wanted = _only_explicit(spec)
    padded = PartitionSpec(*wanted, *[None] * (x.ndim - len(wanted)))
    return jax.sharding.reshard(x, padded)
