"""Calls of the handlers in a host computation, for programs on GPU and TPU devices.

XLA copies the operands to pinned memory of the host, runs the body on the host's
processor, and copies the results back; the thread that runs the program waits for it.
Three rules come from its compilers:

* An operand has one dimension, and each call has one bucket: in JAX 0.10 the host and
  the device disagree about the layout of operands of more dimensions, and one transfer
  each way costs less than several. So group, rank and number are one vector.
* No operand is a constant of the program, which the TPU compiler refuses; constants are
  made in the body.
* The results are not aliased to the operands; the handler reads and writes both.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_optireduce._jax import lowering
from jax_optireduce._program.concatenate import concatenate


class Way(NamedTuple):
    """A way from a program to the handlers.

    Attributes:
      reduce: (rank, step, leaves, attributes, kept) -> sums, statistics. Without a
        step, here and below, the session counts the calls. `kept` are the positions of
        leaves that the program keeps; the others share the memory of their sums.
      take: (rank, bucket, attributes) -> number, bucket: takes the number of the next
        call when the bucket exists.
      begin: (rank, step, leaves, attributes) -> token: starts a call.
      end: (rank, token, after, results) -> sums, statistics: waits for a begun call
        when the arrays `after` exist; `results` are types of vectors.
    """

    reduce: Callable[..., list[jax.Array]]
    take: Callable[..., tuple[jax.Array, jax.Array]]
    begin: Callable[..., jax.Array]
    end: Callable[..., list[jax.Array]]


def concatenated(leaves: Sequence[jax.Array]) -> jax.Array:
    """Returns the leaves as one vector."""
    return concatenate([leaf.reshape(1, -1) for leaf in leaves])[0]


def split(bucket: jax.Array, like: Sequence[Any]) -> list[jax.Array]:
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
        kept: Collection[int] = (),
    ) -> list[jax.Array]:
        del kept  # Operands and results have memory of their own.

        def body(bucket: jax.Array, numbers: jax.Array) -> tuple[jax.Array, ...]:
            return tuple(direct.reduce(*_parted(numbers), [bucket], attributes, {0}))

        bucket = concatenated(leaves)
        total, vector = lowering.on_host(body, bucket, _joined(rank, step))
        return [*split(total, leaves), vector]

    def take(
        rank: jax.Array, bucket: jax.Array, attributes: dict[str, Any]
    ) -> tuple[jax.Array, jax.Array]:
        number = lowering.on_host(
            lambda element, rank: direct.take(rank, element, attributes)[0],
            _element(bucket),
            rank,
        )
        return number, bucket

    def begin(
        rank: jax.Array,
        step: jax.Array | None,
        leaves: Sequence[jax.Array],
        attributes: dict[str, Any],
    ) -> jax.Array:
        def body(bucket: jax.Array, numbers: jax.Array) -> jax.Array:
            return direct.begin(*_parted(numbers), [bucket], attributes)

        return lowering.on_host(body, concatenated(leaves), _joined(rank, step))

    def end(
        rank: jax.Array,
        token: jax.Array,
        after: Sequence[jax.Array],
        results: Sequence[Any],
    ) -> list[jax.Array]:
        size = sum(result.size for result in results)
        whole = jax.ShapeDtypeStruct((size,), results[0].dtype)

        def body(
            token: jax.Array, rank: jax.Array, *after: jax.Array
        ) -> tuple[jax.Array, ...]:
            return tuple(direct.end(rank, token, after, [whole]))

        elements = [_element(x) for x in after]
        total, vector = lowering.on_host(body, token, rank, *elements)
        return [*split(total, results), vector]

    return Way(reduce, take, begin, end)


def _joined(rank: jax.Array, step: jax.Array | None) -> jax.Array:
    """Returns group, rank and number of a call as int32 [3], without a number [2]."""
    return rank if step is None else jnp.append(rank, step)


def _parted(numbers: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Undoes `_joined`."""
    return numbers[:2], numbers[2] if numbers.size > 2 else None


def _element(x: jax.Array) -> jax.Array:
    """Returns one element, which stands for an array: it exists when the array does."""
    # Behind the barrier the compiler does not compute it alone.
    return lax.optimization_barrier(x).reshape(-1)[:1]
