"""Axes of the mesh in context, and types under shard_map."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jax_optireduce._jax_version import explained

# Name of the axis of a `jax.pmap` without `axis_name=`.
UNNAMED_PMAP_AXIS = "_internal_pmap_axis_name"


@explained
def varying_axes(x: Any) -> frozenset[str]:
    """Returns the manual axes over which `x` varies; empty under check_vma=False."""
    return frozenset(jax.typeof(x).mat.varying)


@explained
def reduced_type(aval: Any, axes: Iterable[str]) -> Any:
    """Returns the type of a sum over `axes`, which does not vary over them."""
    varying = frozenset(aval.mat.varying) - frozenset(axes)
    manual_axis_type = aval.mat.update(varying=varying)
    return aval.update(manual_axis_type=manual_axis_type, weak_type=False)


def stats_type(rank_aval: Any, size: int) -> Any:
    """Returns the type of a statistics vector, made from that of the rank operand.

    For JAX it varies over no axis, so that a program can return it from any mesh.
    """
    return vector_type(rank_aval, size, np.float32)


@explained
def vector_type(
    rank_aval: Any, size: int, dtype: Any, varying: Iterable[str] = ()
) -> Any:
    """Returns the type of a vector [size] that varies over some axes.

    Args:
      rank_aval: type of the rank operand, from which it is made.
      size: number of elements.
      dtype: of the vector.
      varying: the axes.
    """
    aval = rank_aval.update(shape=(size,), dtype=np.dtype(dtype), weak_type=False)
    manual_axis_type = aval.mat.update(varying=frozenset(varying))
    return aval.update(manual_axis_type=manual_axis_type)


def mesh_axes() -> dict[str, tuple[int, bool]]:
    """Returns (size, whether manual) of every axis of the mesh in context."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = frozenset(mesh.manual_axes)
    return {name: (size, name in manual) for name, size in mesh.shape.items()}
