"""The plan of buckets. Pure: shapes in, indices and names out."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Leaves of one dtype that one call reduces.

    Attributes:
      leaves: positions in the flattened tree, in sending order.
      elements: of all leaves together.
      suffix: addition to the name of the call.
      integral: whether its leaves are integers.
    """

    leaves: tuple[int, ...]
    elements: int
    suffix: str
    integral: bool


def plan_buckets(
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[np.dtype],
    *,
    bucket_bytes: int,
) -> tuple[Bucket, ...]:
    """Packs leaves into buckets of one dtype, in order, at most `bucket_bytes` each.

    The plan starts with the last leaf: the backward pass ends with the first layers, so
    the gradients of the last leaves can be sent during the computation.

    The plan depends on its arguments only, so it is the same on every rank, and the
    same for a drain as for its calls. The buckets of integers have suffixes of their
    own, which leaves the names of the other buckets unchanged: the tree of a drain may
    include counters among the parameters, the tree of gradients does not. Leaves
    without elements are in no bucket.

    Args:
      shapes: of each leaf.
      dtypes: of each leaf.
      bucket_bytes: largest bucket, in bytes; a larger leaf gets a bucket of its own.

    Returns:
      The buckets, in the order in which they become full.
    """
    full: list[tuple[np.dtype, list[int], int]] = []
    # Per dtype, in order of first use: positions and elements of the incomplete bucket.
    open_buckets: dict[np.dtype, tuple[list[int], int]] = {}
    for index in reversed(range(len(shapes))):
        dtype = np.dtype(dtypes[index])
        elements = int(np.prod(shapes[index], dtype=np.int64))
        if elements == 0:
            continue
        leaves, held = open_buckets.get(dtype, ([], 0))
        if leaves and (held + elements) * dtype.itemsize > bucket_bytes:
            full.append((dtype, leaves, held))
            leaves, held = [], 0
        open_buckets[dtype] = ([*leaves, index], held + elements)
    full.extend((dtype, *bucket) for dtype, bucket in open_buckets.items())
    kinds = [np.issubdtype(dtype, np.integer) for dtype, _, _ in full]
    buckets: list[Bucket] = []
    for i, (dtype, leaves, held) in enumerate(full):
        suffix = f" {dtype}" if kinds[i] else ""
        if kinds.count(kinds[i]) > 1:
            suffix += f" [{kinds[:i].count(kinds[i])}]"
        buckets.append(Bucket(tuple(leaves), held, suffix, integral=kinds[i]))
    return tuple(buckets)
