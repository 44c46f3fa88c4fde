"""Allreduces of NumPy arrays, called by the host: outside programs, on any platform."""

from collections.abc import Sequence

import numpy as np

from jax_optireduce import _native


def allreduce(
    bucket: np.ndarray,
    *,
    communicator: str,
    name: str,
    mode: str,
    processes: Sequence[int],
    rank: int,
    wire_format: str = "float32",
    drain: int = 0,
    fingerprint: int = 0,
) -> list[float]:
    """Sums a bucket in place over processes, and waits; returns the statistics.

    Args:
      bucket: [elements], int32 or float32, writable.
      communicator: name of the native communicator.
      name: of the collective; its calls are numbered.
      mode: see `CallArguments`; not "present".
      processes: the group.
      rank: of this process in the group.
      wire_format: see `CallArguments`.
      drain: see `Drain`.
      fingerprint: a number which the group must agree on, as on the elements.

    Raises:
      RuntimeError: the call failed.
    """
    attributes = {
        "communicator": communicator,
        "name": name,
        "key": name,
        "description": f"'{name}' ({bucket.dtype}[{bucket.size}], mode {mode})",
        "operation": "allreduce",
        "mode": mode,
        "wire_format": wire_format,
        "drain": np.int64(drain),
        # A late share is kept for the next call: no other stands for it.
        "averages": False,
        "pairs": False,
        "fingerprint": np.int64(fingerprint ^ bucket.size),
        "group_processes": np.array(processes, np.int32),
        "group_size": np.int64(len(processes)),
        "clusters": np.array([], np.int32),
        "spare": np.int64(0),
    }
    return _native.reduce_and_wait(
        attributes,
        group_rank=[0, rank],
        step=-1,
        dtype=str(bucket.dtype),
        leaf=bucket.view(np.uint8),
    )
