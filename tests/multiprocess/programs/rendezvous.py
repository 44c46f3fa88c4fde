"""Joins in the way given as argument; prints "error <message>", or "sum <sum>"."""

import os
import sys
from pathlib import Path

import jax
import meshes
import numpy as np

import jax_optireduce as jo
from jax_optireduce import _native
from jax_optireduce._jax import processes
from jax_optireduce._session import host_facts

HOW = sys.argv[1]
rank = int(os.environ["JAX_PROCESS_ID"])
options = {}

if HOW == "different options":
    options = {"bucket_bytes": 1000 + rank, "lanes": 1 + rank}
elif HOW == "without key-value client":
    processes._distributed = None
elif HOW == "jax.distributed initialised before":
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"],
        int(os.environ["JAX_NUM_PROCESSES"]),
        rank,
    )
elif HOW == "many cores":
    host_facts.boot = lambda: f"host {rank}"
    os.sched_getaffinity = lambda _: set(range(6 - 2 * rank))
elif HOW == "several releases" and rank == 1:
    jo.__version__ = "0.0.9"
elif HOW == "several wire formats" and rank == 1:
    _native.wire_version = lambda: 1
elif HOW == "twice":
    with jo.init():
        pass

try:
    communicator = jo.init(**options)
except jo.RendezvousError as error:
    print("error", error, flush=True)
    sys.exit(0)

mesh = meshes.make((jax.device_count(),), ("dp",))
program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp"))
given = meshes.spread(mesh, np.arange(1, jax.device_count() + 1, dtype=np.float32))
(total,) = meshes.rows_here(program(given)).values()
print("sum", total, communicator.rank, communicator.world_size)
counters = jo.stats()
if communicator.options.backend == "xla":
    assert counters == {}
    assert communicator.datagram_bytes == 0
else:
    assert counters["calls_completed"] == 1
    assert 548 <= communicator.datagram_bytes <= 65_504
    print("datagrams", communicator.datagram_bytes)
    threads = [comm.read_text() for comm in Path("/proc/self/task").glob("*/comm")]
    print("lanes", threads.count("optireduce-lane\n"))
jo.shutdown()
jo.shutdown()
