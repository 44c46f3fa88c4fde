"""What one collective call reports about itself."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jax_optireduce import _native

# Position of each element in the statistics vector that a call returns.
_AT = {name: i for i, name in enumerate(_native.STATISTICS)}

VECTOR_SIZE = len(_AT)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectiveStats:
    """How one call went, as this rank saw it: a pytree of float32 scalars.

    Where a call moves several buckets, fractions are means weighted by elements, counts
    are sums, `elapsed_s`, `deadline_s` and `slowest_process` are those of the slowest
    bucket.

    Ranks see different values, although JAX types them as equal on all devices (so that
    `out_specs=PartitionSpec()` returns them): sum or average them before a branch of
    the program depends on them.

    Attributes:
      missing_contributions: share of the contributions that is missing from the sums
        this rank got, in [0, 1]. Always 0 in mode "exact". In "bounded" and "agreed"
        they were late and come with a later call.
      missing_results: share of the elements of the result that did not come in time, in
        [0, 1]; they are 0 (rotated: their share of each block). Always 0 in mode
        "exact" and "agreed". In "bounded" they come with a later call.
      elapsed_s: from the start of the call to its end, in seconds.
      repaired: segments that this rank sent again.
      late: segments that came for this call after their stage had closed.
      slowest_process: process whose data came last, or did not come; -1 when the call
        left no process.
      sequence: number of the call among those of its collective, or the `step` given.
      carried: share of the elements of the result that hold data of earlier calls, in
        [0, 1]. Always 0 in the modes "exact" and "lossy".
      deadline_s: what the call had, both stages together, in seconds. While it is being
        learned, the longest it may have. 0 when the call waited: in "exact" and
        "agreed", in a drain, and where all others were past the call already.
      in_flight: share of this rank's contributions and of the results it owes the
        others that are not yet known to have arrived, in [0, 1]: what a `drain` would
        wait for.
      live_processes: processes that take part, the dead ones not counted; 0 for a call
        that moved nothing. In mode "bounded" means are over the ranks of these.
    """

    missing_contributions: jax.Array
    missing_results: jax.Array
    elapsed_s: jax.Array
    repaired: jax.Array
    late: jax.Array
    slowest_process: jax.Array
    sequence: jax.Array
    carried: jax.Array
    deadline_s: jax.Array
    in_flight: jax.Array
    live_processes: jax.Array


def empty() -> CollectiveStats:
    """Returns the report of a call that moved nothing."""
    names = [field.name for field in dataclasses.fields(CollectiveStats)]
    scalars = {name: jnp.zeros((), jnp.float32) for name in names}
    scalars["slowest_process"] = jnp.full((), -1, jnp.float32)
    return CollectiveStats(**scalars)


def empty_vector() -> jax.Array:
    """Returns the vector of a call that moved nothing, float32 [VECTOR_SIZE]."""
    vector = np.zeros(VECTOR_SIZE, np.float32)
    vector[_AT["slowest_process"]] = -1
    return jnp.asarray(vector)


def missing_results(vector: jax.Array) -> jax.Array:
    """Returns the share of the result that is zero because it did not come."""
    return vector[_AT["missing_results"]]


def live_ranks(vector: jax.Array, size: int) -> jax.Array:
    """Returns how many of `size` ranks are in live processes, which have equally many.

    A whole number in float32, exact: `size` itself while all are alive.
    """
    live, processes = vector[_AT["live_processes"]], vector[_AT["processes"]]
    # A call that moved nothing knows of no process.
    return jnp.where(live > 0, size * live / processes, size)


def from_vectors(
    vectors: Sequence[jax.Array], elements: Sequence[int]
) -> CollectiveStats:
    """Makes one report of the vectors of a call's buckets.

    Args:
      vectors: float32 [VECTOR_SIZE] each, one per bucket; none is allowed.
      elements: elements of each bucket: the weights of the fractions.
    """
    if not vectors:
        return empty()
    table = jnp.stack(list(vectors))
    weights = np.asarray(elements, np.float64)
    weights = jnp.asarray(weights / weights.sum(), jnp.float32)
    column = {name: table[:, i] for name, i in _AT.items()}
    slowest = jnp.argmax(column["elapsed_s"])
    return CollectiveStats(
        missing_contributions=column["missing_contributions"] @ weights,
        missing_results=column["missing_results"] @ weights,
        elapsed_s=column["elapsed_s"][slowest],
        repaired=column["repaired"].sum(),
        late=column["late"].sum(),
        slowest_process=column["slowest_process"][slowest],
        sequence=column["sequence"].max(),
        carried=column["carried"] @ weights,
        deadline_s=column["deadline_s"][slowest],
        in_flight=column["in_flight"] @ weights,
        live_processes=column["live_processes"].min(),
    )
