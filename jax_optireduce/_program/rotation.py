"""The rotation of a bucket before a call, and back after it: "lossy" (OptiReduce).

The signs of a rotation depend on the number of its call.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_optireduce import _stats
from jax_optireduce._program import hadamard, host_computation, identity

# 2^32 / golden ratio, made odd: consecutive steps get unrelated keys.
# Source: Knuth, The Art of Computer Programming, volume 3, section 6.4.
_GOLDEN = np.uint32(0x9E3779B9)


def reduce(
    rank: jax.Array,
    step: jax.Array | None,
    leaves: Sequence[jax.Array],
    attributes: dict[str, Any],
    way: host_computation.Way,
) -> list[jax.Array]:
    """Reduces the leaves as one rotated bucket, which distributes loss."""
    step, encoded = rotated(rank, step, leaves, attributes, way)
    total, vector = way.reduce(rank, step, [encoded], attributes)
    key = key_of(step, salt_of(attributes))
    return [*unrotated(total, vector, key, leaves), vector]


def rotated(
    rank: jax.Array,
    step: jax.Array | None,
    leaves: Sequence[jax.Array],
    attributes: dict[str, Any],
    way: host_computation.Way,
) -> tuple[jax.Array, jax.Array]:
    """Returns the number of a call, and its leaves as one rotated bucket."""
    # One leaf keeps its shape: XLA:CPU copies reshaped operands of a call in place.
    bucket = leaves[0]
    if len(leaves) > 1:
        # Padding by the rotation would be another copy.
        entries = sum(leaf.size for leaf in leaves)
        padding = jnp.zeros(hadamard.padded_size(entries) - entries, bucket.dtype)
        bucket = host_computation.concatenated([*leaves, padding])
    step, bucket = numbered(rank, step, bucket, attributes, way)
    key = key_of(step, salt_of(attributes))
    # Half precision is sent unchanged, but the rotation needs more precision.
    wide = jnp.promote_types(bucket.dtype, jnp.float32)
    return step, hadamard.encode(bucket.astype(wide), key=key).astype(bucket.dtype)


def numbered(
    rank: jax.Array,
    step: jax.Array | None,
    bucket: jax.Array,
    attributes: dict[str, Any],
    way: host_computation.Way,
) -> tuple[jax.Array, jax.Array]:
    """Returns the number of a call, and its bucket."""
    if step is not None:
        return step, bucket
    # The signs depend on the number of the call, so the program takes the number first.
    # The operand `bucket` delays that until the data exists: if one call depends on the
    # result of another of the same name, numbers are in the order of the calls.
    return way.take(rank, bucket, attributes)


def unrotated(
    total: jax.Array, vector: jax.Array, key: jax.Array, leaves: Sequence[Any]
) -> list[jax.Array]:
    """Undoes the rotation of a bucket.

    Args:
      total: sum of the results of `rotated`.
      vector: statistics of the call.
      key: that of the rotation.
      leaves: arrays or types of the shapes of the leaves.
    """
    wide = jnp.promote_types(total.dtype, jnp.float32)
    arrived = 1 - _stats.missing_results(vector)
    # Missing coefficients are zero: the scale makes the estimate unbiased.
    scale = jnp.where(arrived > 0, 1 / arrived, 0)
    n = sum(leaf.size for leaf in leaves)
    decoded = hadamard.decode(total.astype(wide), n, key=key, scale=scale)
    return host_computation.split(decoded.astype(total.dtype), leaves)


def salt_of(attributes: dict[str, Any]) -> np.uint32:
    """Returns 32 bits that differ between collectives."""
    return np.uint32(identity.hash64(attributes["name"]) & 0xFFFFFFFF)


def key_of(step: jax.Array, salt: jax.Array | np.uint32) -> jax.Array:
    """Returns the key of the rotation of a call, uint32 [].

    Args:
      step: number of the call, int32 [].
      salt: of the collective, see `salt_of`.
    """
    return (step.astype(jnp.uint32) * _GOLDEN) ^ salt
