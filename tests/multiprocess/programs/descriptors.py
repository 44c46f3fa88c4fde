"""Joins with too few descriptors, and again with enough; prints "error" and "sum"."""

import contextlib
import os
import resource
from pathlib import Path

import jax
import meshes
import numpy as np

import jax_optireduce as jo

LANES = 16


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


jax.config.update("jax_enable_recoverability", True)
jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
    process_id=int(os.environ["JAX_PROCESS_ID"]),
)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
counts = []
# Free descriptors: too few for signals, for the lanes.
for free in (0, 2, 10, 12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    for descriptor in taken[:free]:
        os.close(descriptor)
    try:
        jo.init(lanes=LANES)
    except jo.RendezvousError as error:
        print("error", error, flush=True)
    for descriptor in taken[free:]:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    counts.append(opened())
# Descriptors of process-wide services stay open: a few, once.
print("leaked", counts[-1] - counts[-2], counts, flush=True)
jo.init(lanes=LANES)
mesh = meshes.make((jax.device_count(),), ("dp",))
program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp"))
given = meshes.spread(mesh, np.ones((jax.device_count(), 10_000), np.float32))
(row,) = meshes.rows_here(program(given)).values()
print("sum", row[0], flush=True)
