"""Calls over two axes, of which one crosses a fast network: `fast_axis=`.

In a program whose axes are all manual a sum over ("slow", "fast") has three steps: each
device gets the sum of one part over the fast axis (`lax.psum_scatter`), a call of this
package sums the parts over the slow axis, and the parts are put together over the fast
one (`lax.all_gather`). So a device sends one k-th of the bytes over the slow axis, with
k devices along the fast one.

Source of the steps: BlueConnect (Cho et al., 2019).
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jax_optireduce import _stats
from jax_optireduce._program import allreduce
from jax_optireduce._program.call import Call
from jax_optireduce._program.host_computation import split


def part_shape(shape: Sequence[int], call: Call) -> tuple[int, ...]:
    """Returns the shape of a leaf's share of a part; the plan of buckets uses it."""
    return (-(-math.prod(shape) // lax.axis_size(call.fast)),)


def scattered(leaves: Sequence[jax.Array], call: Call) -> jax.Array:
    """Returns this device's part of the sum of leaves over the fast axis.

    Args:
      leaves: of one dtype; at least one element.
      call: a call with a fast axis.

    Returns:
      One dimension; padded, so that all parts are equally long.
    """
    flat = [leaf.reshape(-1) for leaf in leaves]
    vector = jnp.concatenate(flat) if len(flat) > 1 else flat[0]
    vector = jnp.pad(vector, (0, -vector.size % lax.axis_size(call.fast)))
    return lax.psum_scatter(vector, call.fast, tiled=True)


def gathered(
    part: jax.Array, vector: jax.Array, like: Sequence[jax.Array], call: Call
) -> tuple[list[jax.Array], jax.Array]:
    """Puts the parts of a sum together.

    Args:
      part: this device's part of the sum over all axes.
      vector: statistics of the call of the part.
      like: leaves with the shapes of the result.
      call: a call with a fast axis.

    Returns:
      The sums, and the statistics of all parts: both equal on all devices along the
      fast axis.
    """
    if call.of_live:
        # The parts can have different numbers of live ranks.
        size, replicas = allreduce.axis_size(call.slow), call.over_replicas
        part = _stats.scaled_to_all(part, vector, size, replicas=replicas)
    whole = _together(part, call.fast)
    sums = split(whole[: sum(leaf.size for leaf in like)], like)
    table = _together(vector[None], call.fast)
    return sums, _stats.combined(table)


def _together(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Gathers over axes; the result does not vary over them."""
    if not allreduce.is_typed(axes):
        return lax.all_gather(x, axes, tiled=True)
    # The statistics are typed as equal on all devices.
    x = allreduce.made_varying(x, axes)
    return lax.all_gather(x, axes, tiled=True, to="invarying")
