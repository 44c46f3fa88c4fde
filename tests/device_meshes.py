"""Meshes of the first devices of a process."""

import math

import jax
from jax.sharding import AxisType


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...]) -> jax.sharding.Mesh:
    """Returns a mesh of as many devices as needed, with automatic axes."""
    return jax.make_mesh(
        shape,
        names,
        axis_types=(AxisType.Auto,) * len(shape),
        devices=jax.devices()[: math.prod(shape)],
    )
