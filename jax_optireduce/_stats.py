"""The statistics of a call."""

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
    """Statistics of one call, as seen by this rank: a pytree of float32 scalars.

    For a call of several buckets, fractions are means weighted by elements; counts are
    sums; `sequence` and `skipped` are the maximum and `live_processes` the minimum;
    `elapsed_s`, `deadline_s` and `slowest_process` are those of the slowest bucket.

    Values differ between ranks, although JAX types them as equal on all devices (so
    that `out_specs=PartitionSpec()` returns them): sum or average them before a branch
    of the program depends on them.

    Attributes:
      missing_contributions: share of the contributions missing from the sums that this
        rank received, in [0, 1]. Always 0 in mode "exact". In "bounded" and "agreed"
        they were late and join a later call.
      missing_results: share of the elements of the result that did not arrive in time,
        in [0, 1]; such elements are 0 (rotated: this share of each block). Always 0 in
        mode "exact" and "agreed". In "bounded" they join a later call.
      elapsed_s: duration of the call, in seconds.
      retransmitted: segments that this rank retransmitted.
      late: segments that arrived for this call after their stage had closed.
      slowest_process: process whose data arrived last, or did not arrive; -1 for a call
        within one process.
      sequence: number of the call in the session: its number among those of its
        collective on this rank, or the `step` given, plus all calls that this rank has
        skipped.
      deferred: share of the elements of the result that hold deferred data of earlier
        calls, in [0, 1]. Always 0 in the modes "exact" and "lossy".
      deadline_s: deadline of the call, both stages together, in seconds. During
        learning, its upper bound. 0 for a call that waits: in "exact" and "agreed", in
        a drain, and for a call that all others have already passed.
      in_flight: share of this rank's contributions, and of its sums for the others,
        that is not yet acknowledged, in [0, 1]: the data that a `drain` waits for.
      live_processes: participating processes, without removed ones; all of the job for
        a call without data, or of JAX. In mode "bounded" mean gradients are over the
        ranks of these processes.
      skipped: calls of the other ranks that this rank has skipped directly before this
        one; 0 with two processes, which wait for each other.
      rounded: share of the data for which this rank sent rounded values, in [0, 1]: 0
        or 1 with a fixed `wire_format`, any share with "auto".
    """

    missing_contributions: jax.Array
    missing_results: jax.Array
    elapsed_s: jax.Array
    retransmitted: jax.Array
    late: jax.Array
    slowest_process: jax.Array
    sequence: jax.Array
    deferred: jax.Array
    deadline_s: jax.Array
    in_flight: jax.Array
    live_processes: jax.Array
    skipped: jax.Array
    rounded: jax.Array


def empty() -> CollectiveStats:
    """Returns the statistics of a call without data."""
    names = [field.name for field in dataclasses.fields(CollectiveStats)]
    scalars = {name: jnp.zeros((), jnp.float32) for name in names}
    scalars["slowest_process"] = jnp.full((), -1, jnp.float32)
    # A program that asks for deaths learns of none.
    scalars["live_processes"] = jnp.full((), jax.process_count(), jnp.float32)
    return CollectiveStats(**scalars)


def empty_vector() -> jax.Array:
    """Returns the vector of a call without data, float32 [VECTOR_SIZE]."""
    vector = np.zeros(VECTOR_SIZE, np.float32)
    vector[_AT["slowest_process"]] = -1
    return jnp.asarray(vector)


def missing_results(vector: jax.Array) -> jax.Array:
    """Returns the share of the result that did not arrive, and is zero."""
    return vector[_AT["missing_results"]]


def passed(vector: jax.Array) -> jax.Array:
    """Returns whether all others had passed the call when it ended, bool []."""
    return vector[_AT["passed"]] > 0


def live_processes(vector: Sequence[float]) -> float:
    """Returns the number of live processes in a vector on the host, at least 1."""
    return max(1.0, vector[_AT["live_processes"]])


def live_ranks(vector: jax.Array, size: int, *, replicas: bool = False) -> jax.Array:
    """Returns the number of ranks in live processes, float32 [].

    A whole number: `size` while all processes are alive. Each process has the same
    number of the `size` ranks.

    Args:
      vector: of the call.
      size: number of all ranks; with `replicas` those of one process.
      replicas: whether the call is over all replicas.
    """
    live, processes = vector[_AT["live_processes"]], vector[_AT["processes"]]
    if replicas:
        return size * jnp.maximum(live, 1)
    # The vector of a call without data has no processes.
    return jnp.where(live > 0, size * live / processes, size)


def scaled_to_all(
    x: jax.Array, vector: jax.Array, size: int, *, replicas: bool = False
) -> jax.Array:
    """Scales a floating sum over the live ranks to `size` ranks; integers stay."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    ranks = live_ranks(vector, size, replicas=replicas)
    return (x * (size / ranks)).astype(x.dtype)


def from_vectors(
    vectors: Sequence[jax.Array], elements: Sequence[int]
) -> CollectiveStats:
    """Makes the statistics of a call from the vectors of its buckets.

    Args:
      vectors: float32 [VECTOR_SIZE] each, one per bucket; may be empty.
      elements: elements of each bucket: the weights of the fractions.
    """
    if not vectors:
        return empty()
    weights = np.asarray(elements, np.float64)
    vector = combined(jnp.stack(list(vectors)), weights / weights.sum())
    fields = [field.name for field in dataclasses.fields(CollectiveStats)]
    return CollectiveStats(**{name: vector[_AT[name]] for name in fields})


def combined(table: jax.Array, weights: np.ndarray | None = None) -> jax.Array:
    """Combines the statistics of parts of a call, see `CollectiveStats`.

    Args:
      table: float32 [parts, VECTOR_SIZE].
      weights: of the parts, in the fractions; None: equal weights.

    Returns:
      Float32 [VECTOR_SIZE].
    """
    parts = table.shape[0]
    given = np.full(parts, 1 / parts) if weights is None else weights
    shares = jnp.asarray(given, jnp.float32)
    slowest = jnp.argmax(table[:, _AT["elapsed_s"]])
    rules = {
        "retransmitted": lambda column: column.sum(),
        "late": lambda column: column.sum(),
        "sequence": lambda column: column.max(),
        "skipped": lambda column: column.max(),
        "live_processes": lambda column: column.min(),
        "processes": lambda column: column.max(),
        "elapsed_s": lambda column: column[slowest],
        "deadline_s": lambda column: column[slowest],
        "slowest_process": lambda column: column[slowest],
    }

    def mean(column: jax.Array) -> jax.Array:
        return column @ shares

    values = [rules.get(name, mean)(table[:, i]) for name, i in _AT.items()]
    return jnp.stack(values)
