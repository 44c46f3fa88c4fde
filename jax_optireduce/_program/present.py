"""Means over the contributions that have come, in mode "bounded".

A gradient that misses its step joins a later one, so its mean divides by all ranks. A
value, such as a loss, is read at once: without one of four contributions it would be a
quarter too small, without all of them 0. So each element travels with the number of its
contributions, as a pair, which no datagram divides (the attribute `pairs` of the
handler), and the sum is divided by that number. A late contribution joins a later mean,
with its number.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_optireduce._program.host_computation import Way


def reduce(
    rank: jax.Array,
    step: jax.Array | None,
    leaves: Sequence[jax.Array],
    attributes: dict[str, Any],
    way: Way,
    size: int,
) -> list[jax.Array]:
    """Returns `size` times the mean of those that have come; NaN if none has.

    Args:
      rank: see `allreduce`.
      step: see `allreduce`.
      leaves: floating; of one dtype.
      attributes: of the handler.
      way: of the call.
      size: the number of ranks.

    Returns:
      Arrays of the shapes and dtypes of the leaves, and the statistics vector.
    """
    wide = jnp.promote_types(leaves[0].dtype, jnp.float32)
    counted = [
        jnp.stack([leaf.astype(wide), jnp.ones_like(leaf, wide)], axis=-1)
        for leaf in leaves
    ]
    *sums, vector = way.reduce(rank, step, counted, attributes)
    scaled = [_scaled(total[..., 0], total[..., 1], size) for total in sums]
    results = [x.astype(leaf.dtype) for x, leaf in zip(scaled, leaves, strict=True)]
    return [*results, vector]


def _scaled(total: jax.Array, contributions: jax.Array, size: int) -> jax.Array:
    # A whole sum keeps its bits. 0 / 0 is NaN.
    return jnp.where(contributions == size, total, total / contributions * size)
