"""Plans which leaves travel together. Pure: shapes in, indices out."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Leaves of one dtype that one call moves.

    Attributes:
      leaves: positions in the flattened tree, in the order in which they are sent.
      elements: of all leaves together.
    """

    leaves: tuple[int, ...]
    elements: int


def plan_buckets(
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[np.dtype],
    *,
    bucket_bytes: int,
) -> tuple[Bucket, ...]:
    """Packs leaves into buckets: of one dtype, in order, at most `bucket_bytes` each.

    It starts with the last leaf: the backward pass ends with the first layers, so the
    last leaves' gradients can be on their way while it still computes.

    The plan depends on nothing but its arguments, so it is the same on every rank, and
    for `drain` the same as for the calls it drains. Leaves without elements are in no
    bucket: there is nothing to send.

    Args:
      shapes: of each leaf.
      dtypes: of each leaf.
      bucket_bytes: largest bucket, in bytes; a larger leaf gets a bucket of its own.

    Returns:
      The buckets, in the order in which they become full.
    """
    full: list[Bucket] = []
    # Per dtype, in order of first use: positions and elements of the bucket being
    # filled.
    open_buckets: dict[np.dtype, tuple[list[int], int]] = {}
    for index in reversed(range(len(shapes))):
        dtype = np.dtype(dtypes[index])
        elements = int(np.prod(shapes[index], dtype=np.int64))
        if elements == 0:
            continue
        leaves, held = open_buckets.get(dtype, ([], 0))
        if leaves and (held + elements) * dtype.itemsize > bucket_bytes:
            full.append(Bucket(tuple(leaves), held))
            leaves, held = [], 0
        open_buckets[dtype] = ([*leaves, index], held + elements)
    full.extend(Bucket(tuple(leaves), held) for leaves, held in open_buckets.values())
    return tuple(full)
