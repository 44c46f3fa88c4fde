"""What one collective call reports about itself."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

# Elements of the statistics vector that a call returns, by position. The C++ side fills
# the same order (bind/xla_allreduce.cc); every element is written, unused ones with 0.
VECTOR_SIZE = 8
_MISSING_CONTRIBUTIONS = 0
_MISSING_RESULTS = 1
_ELAPSED = 2
_REPAIRED = 3
_LATE = 4
_SLOWEST_PROCESS = 5
_SEQUENCE = 6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectiveStats:
    """How one call went, as this rank saw it: a pytree of float32 scalars.

    Where a call moves several buckets, fractions are means weighted by elements, counts
    are sums, `elapsed_s` and `slowest_process` are those of the slowest bucket.

    Ranks see different values, although JAX types them as equal on all ranks (so that
    `out_specs=PartitionSpec()` returns them): sum or average them before a branch of
    the program depends on them.

    Attributes:
      missing_contributions: share of the contributions that is missing from the sums
        this rank got, in [0, 1]. Always 0 in mode "exact".
      missing_results: share of the elements of the result that did not come in time, in
        [0, 1]; they are 0 (rotated: their share of each block). Always 0 in mode
        "exact".
      elapsed_s: from the start of the call to its end, in seconds.
      repaired: segments that this rank sent again.
      late: segments that came for this call after their stage had closed.
      slowest_process: process whose data came last, or did not come; -1 when the call
        left no process.
      sequence: number of the call among those of its collective, or the `step` given.
    """

    missing_contributions: jax.Array
    missing_results: jax.Array
    elapsed_s: jax.Array
    repaired: jax.Array
    late: jax.Array
    slowest_process: jax.Array
    sequence: jax.Array


def empty_vector() -> jax.Array:
    """Returns the vector of a call that moved nothing, float32 [VECTOR_SIZE]."""
    vector = np.zeros(VECTOR_SIZE, np.float32)
    vector[_SLOWEST_PROCESS] = -1
    return jnp.asarray(vector)


def missing_results(vector: jax.Array) -> jax.Array:
    """Returns the share of the result that is zero because it did not come."""
    return vector[_MISSING_RESULTS]


def from_vectors(
    vectors: Sequence[jax.Array], elements: Sequence[int]
) -> CollectiveStats:
    """Makes one report of the vectors of a call's buckets.

    Args:
      vectors: float32 [VECTOR_SIZE] each, one per bucket; none is allowed.
      elements: elements of each bucket: the weights of the fractions.
    """
    if not vectors:
        vectors, elements = [empty_vector()], [1]
    table = jnp.stack(list(vectors))
    weights = np.asarray(elements, np.float64)
    weights = jnp.asarray(weights / weights.sum(), jnp.float32)
    slowest = table[jnp.argmax(table[:, _ELAPSED])]
    return CollectiveStats(
        missing_contributions=table[:, _MISSING_CONTRIBUTIONS] @ weights,
        missing_results=table[:, _MISSING_RESULTS] @ weights,
        elapsed_s=slowest[_ELAPSED],
        repaired=table[:, _REPAIRED].sum(),
        late=table[:, _LATE].sum(),
        slowest_process=slowest[_SLOWEST_PROCESS],
        sequence=table[:, _SEQUENCE].max(),
    )
