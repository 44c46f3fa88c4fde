"""Leaves in programs whose compiler shards some axes by itself.

In `jax.shard_map(..., axis_names={"data"})` the other axes of the mesh are automatic. A
call sends the part of a leaf that a device holds. So each leaf is divided over all
automatic axes: by the specs of the user, by the type of the leaf, or else along its
largest dimension. Leaves that no dimension divides form one vector: sent whole by each
device, copies on the devices of a process would receive different results.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jax_optireduce import _compat
from jax_optireduce._errors import UsageError


class Part(NamedTuple):
    """One operand of a call.

    Attributes:
      array: a leaf, or the vector of several.
      spec: its division over the automatic axes; None without such axes.
      positions: of its leaves in the tree.
    """

    array: jax.Array
    spec: PartitionSpec | None
    positions: list[int]

    def local_shape(self) -> tuple[int, ...]:
        """Returns the shape on a device."""
        if self.spec is None:
            return self.array.shape
        return local_shape(self.array.shape, self.spec, automatic_axes())


def local_shape(
    shape: Sequence[int], spec: PartitionSpec, sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """Returns the shape on a device, with the sizes of the axes."""
    local = list(shape)
    for dimension, axes in enumerate(_entries(spec)):
        local[dimension] //= math.prod(sizes[axis] for axis in axes)
    return tuple(local)


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
    mesh = _compat.mesh_axes()
    if not any(manual for _, manual in mesh.values()):
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
            f"{kind}: specs must be a tree like the leaves, or a prefix of it: {error}"
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
            f"{kind}: specs must hold jax.sharding.PartitionSpec, NamedSharding or "
            f"None, got {spec!r}."
        )
    if len(spec) > jnp.ndim(leaf):
        raise UsageError(
            f"{kind}: the spec {spec} has {len(spec)} dimensions, its leaf of shape "
            f"{list(jnp.shape(leaf))} has {jnp.ndim(leaf)}."
        )
    known = _compat.mesh_axes()
    for axis in (axis for axes in _entries(spec) for axis in axes):
        if known and axis not in known:
            raise UsageError(
                f"{kind}: the spec {spec} names the axis {axis!r}; the axes of the "
                f"mesh are {', '.join(map(str, known))}."
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
        return [Part(leaf, None, [i]) for i, leaf in filled.items()]
    divisions = {i: _division(leaf, specs[i], axes) for i, leaf in filled.items()}
    parts = [
        Part(_resharded(filled[i], spec), spec, [i])
        for i, spec in divisions.items()
        if spec is not None
    ]
    vectors: dict[Any, list[int]] = {}
    for i, spec in divisions.items():
        if spec is None:
            vectors.setdefault(filled[i].dtype, []).append(i)
    # The plan of buckets begins with the last operand: a vector needs all its leaves.
    return [_vector(filled, positions, axes) for positions in vectors.values()] + parts


def restored(
    part: Part, total: jax.Array, leaves: Mapping[int, jax.Array]
) -> dict[int, jax.Array]:
    """Returns the leaves of the sum of an operand, by their position."""
    if part.spec is None:
        return {part.positions[0]: total}
    first, *more = part.positions
    if not more and total.shape == leaves[first].shape:
        return {first: _resharded(total, _explicit_spec(leaves[first]))}
    total = _resharded(total, PartitionSpec())
    found, begin = {}, 0
    for i in part.positions:
        found[i] = total[begin : begin + leaves[i].size].reshape(leaves[i].shape)
        begin += leaves[i].size
    return found


def _vector(
    leaves: Mapping[int, jax.Array], positions: Sequence[int], axes: Mapping[str, int]
) -> Part:
    flat = [_resharded(leaves[i], PartitionSpec()).reshape(-1) for i in positions]
    vector = jnp.concatenate(flat) if len(flat) > 1 else flat[0]
    vector = jnp.pad(vector, (0, -vector.size % math.prod(axes.values())))
    spec = PartitionSpec(tuple(axes))
    return Part(_resharded(vector, spec), spec, list(positions))


def _division(
    leaf: jax.Array, given: PartitionSpec | None, axes: Mapping[str, int]
) -> PartitionSpec | None:
    """Returns a spec with all automatic axes; None if no dimension can be divided."""
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
            return None
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
