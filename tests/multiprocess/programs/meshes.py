"""Common functions of the programs of this folder: arrays that are equal everywhere."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

# Errors of a failed call: the latter if XLA runs a small program inline.
CALL_ERRORS = (jax.errors.JaxRuntimeError, ValueError)


def make(shape: Sequence[int], names: Sequence[str]) -> jax.sharding.Mesh:
    """Returns a mesh over all devices of all processes, in the order of their ranks."""
    devices = jax.devices()[: math.prod(shape)]
    automatic = (AxisType.Auto,) * len(names)
    return jax.make_mesh(shape, names, axis_types=automatic, devices=devices)


def spread(mesh: jax.sharding.Mesh, rows: np.ndarray) -> jax.Array:
    """Places row i on device i of the mesh."""
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.make_array_from_callback(rows.shape, sharding, lambda at: rows[at])


def mapped(
    mesh: jax.sharding.Mesh, function: Callable[..., Any], **arguments: Any
) -> Callable[..., Any]:
    """Maps a function over the rows; its results keep a leading axis of devices."""
    spec = PartitionSpec(mesh.axis_names)

    def local(*rows: Any) -> Any:
        results = function(*jax.tree.map(lambda x: x[0], rows))
        return jax.tree.map(lambda x: x[None], results)

    return jax.jit(
        jax.shard_map(
            local,
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
            check_vma=False,
            **arguments,
        )
    )


def rows_here(x: jax.Array) -> dict[int, np.ndarray]:
    """Returns the rows that this process holds, by device of the mesh."""
    return {
        shard.index[0].start or 0: np.asarray(shard.data)[0]
        for shard in x.addressable_shards
    }


def digest(*arrays: np.ndarray) -> str:
    """Hashes the bits of arrays."""
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()[:16]
