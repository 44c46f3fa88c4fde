"""Calls by Python callbacks, for TPUs whose compiler has no handlers of this package.

XLA sends the operands to the host, runs the callback in a thread of its own, and sends
the results back. The callback works on NumPy arrays only: to use JAX in it would wait
for the program that waits for it. It does not hold the GIL while it waits.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_optireduce import _native, _stats
from jax_optireduce._jax import host_callback
from jax_optireduce._program.host_computation import concatenated, split


def reduce(
    rank: jax.Array,
    step: jax.Array | None,
    leaves: Sequence[jax.Array],
    attributes: dict[str, Any],
) -> list[jax.Array]:
    """Sums the leaves as one flat bucket; returns the sums and the statistics vector.

    Without a step the session counts the calls.
    """
    bucket = concatenated(leaves)
    total, vector = host_callback.call(
        functools.partial(_reduce, attributes),
        [bucket, jax.ShapeDtypeStruct((_stats.VECTOR_SIZE,), jnp.float32)],
        rank,
        jnp.int32(-1) if step is None else step,
        bucket,
    )
    return [*split(total, leaves), vector]


def _reduce(
    attributes: dict[str, Any], rank: np.ndarray, step: np.ndarray, bucket: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    total = np.array(bucket)
    stats = _native.reduce_and_wait(
        attributes,
        group_rank=np.asarray(rank).tolist(),
        step=int(step),
        dtype=str(total.dtype),
        leaf=total.view(np.uint8),
    )
    return total, np.array(stats, np.float32)


def take(
    rank: jax.Array, bucket: jax.Array, attributes: dict[str, Any]
) -> tuple[jax.Array, jax.Array]:
    """Takes the number of the next call when the bucket exists; returns both."""
    element = lax.optimization_barrier(bucket).reshape(-1)[:1]
    (number,) = host_callback.call(
        functools.partial(_take, attributes["communicator"], attributes["name"]),
        [jax.ShapeDtypeStruct((), jnp.int32)],
        rank,
        element,
    )
    return number, bucket


def _take(
    communicator: str, name: str, rank: np.ndarray, _element: np.ndarray
) -> tuple[np.ndarray]:
    number = _native.take_number(communicator, name, np.asarray(rank).tolist())
    return (np.array(number, np.int32),)
