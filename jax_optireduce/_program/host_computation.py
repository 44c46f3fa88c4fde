"""Calls of the handlers in a host computation, for programs on GPU and TPU devices.

XLA copies the operands to pinned memory of the host, runs the body on the host's
processor, and copies the results back; the program waits at the first use of a result.
Three rules come from its compilers:

* An operand has one dimension, and each call has one bucket: in JAX 0.10 the host and
  the device disagree about the layout of operands of more dimensions, and one transfer
  each way costs less than several.
* No operand is a constant of the program, which the TPU compiler refuses; constants are
  made in the body.
* The results are not aliased to the operands; the handler copies first.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_optireduce._jax import lowering
from jax_optireduce._program.concatenate import concatenate

# (rank, step, leaves, attributes) -> sums, statistics.
Reduce = Callable[
    [jax.Array, jax.Array | None, Sequence[jax.Array], dict[str, Any]],
    list[jax.Array],
]
# (rank, bucket, attributes) -> number, bucket.
TakeNumber = Callable[
    [jax.Array, jax.Array, dict[str, Any]], tuple[jax.Array, jax.Array]
]


class Way(NamedTuple):
    """A way from a program to the handlers, see `Internal.host_call`.

    Attributes:
      reduce: makes a call; without a step the session counts the calls.
      take: takes the number of the next call when the bucket exists; returns both.
    """

    reduce: Reduce
    take: TakeNumber


def concatenated(leaves: Sequence[jax.Array]) -> jax.Array:
    """Returns the leaves as one vector."""
    return concatenate([leaf.reshape(1, -1) for leaf in leaves])[0]


def split(bucket: jax.Array, like: Sequence[jax.Array]) -> list[jax.Array]:
    """Undoes `concatenated`; the results have the shapes of `like`."""
    if len(like) == 1:
        return [bucket.reshape(like[0].shape)]
    ends = np.cumsum([leaf.size for leaf in like])
    parts = jnp.split(bucket, ends[:-1])
    return [part.reshape(leaf.shape) for part, leaf in zip(parts, like, strict=True)]


def on_host(direct: Way) -> Way:
    """Returns the way of CPU programs, in host computations of one flat bucket."""

    def reduce(
        rank: jax.Array,
        step: jax.Array | None,
        leaves: Sequence[jax.Array],
        attributes: dict[str, Any],
    ) -> list[jax.Array]:
        numbers = [] if step is None else [step]

        def body(
            bucket: jax.Array, rank: jax.Array, *numbers: jax.Array
        ) -> tuple[jax.Array, ...]:
            number = numbers[0] if numbers else None
            return tuple(direct.reduce(rank, number, [bucket], attributes))

        total, vector = lowering.on_host(body, concatenated(leaves), rank, *numbers)
        return [*split(total, leaves), vector]

    def take(
        rank: jax.Array, bucket: jax.Array, attributes: dict[str, Any]
    ) -> tuple[jax.Array, jax.Array]:
        # One element stands for the bucket: behind the barrier the compiler does not
        # compute it alone.
        element = lax.optimization_barrier(bucket).reshape(-1)[:1]
        number = lowering.on_host(
            lambda element, rank: direct.take(rank, element, attributes)[0],
            element,
            rank,
        )
        return number, bucket

    return Way(reduce, take)
