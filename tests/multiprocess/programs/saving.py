"""A training whose process 0 dies before the others save a checkpoint.

Argument: a folder, in which each rank has a checkpoint. Prints

  "stepped <live processes>" after the steps; process 0 then waits to be killed
  "synced <live processes>"  after the resync
  "saved <equal>"            whether the restored parameters are the same
  "done"                     at the end
"""

import sys
import time
from pathlib import Path
from typing import Any

import jax
import meshes
import numpy as np
import orbax.checkpoint as ocp

import jax_optireduce as jo

FOLDER = Path(sys.argv[1])


def step(params: jax.Array, gradient: jax.Array) -> Any:
    """Makes a step of SGD."""
    mean, stats = jo.average_gradients(gradient, "dp", name="g", return_stats=True)
    return params - mean, stats.live_processes


def synchronize(params: jax.Array) -> Any:
    """Adds the data in flight, and makes replicas equal; returns who lives, twice."""
    rest, drained = jo.drain(params, "dp", name="g", return_stats=True)
    params, synced = jo.resync(params - rest, "dp", return_stats=True)
    return params, drained.live_processes, synced.live_processes


def own(x: jax.Array) -> Any:
    """Returns this process's row."""
    (row,) = meshes.rows_here(x).values()
    return row


def save_alone(params: jax.Array) -> bool:
    """Saves without the other processes; returns whether it can be restored."""
    rank = jax.process_index()
    whole = ocp.type_handlers.ArrayHandler(
        primary_host=rank, replica_id=None, use_replica_parallel=False
    )
    ocp.type_handlers.register_type_handler(jax.Array, whole, override=True)
    alone = ocp.options.MultiprocessingOptions(
        primary_host=rank, active_processes={rank}
    )
    checkpointer = ocp.StandardCheckpointer(multiprocessing_options=alone)
    folder = FOLDER / str(rank)
    checkpointer.save(folder, {"params": params})
    checkpointer.wait_until_finished()
    # The argument gives shapes, dtypes and shardings.
    restored = checkpointer.restore(folder, {"params": params})["params"]
    assert restored.sharding == params.sharding
    ours, its = (x.addressable_data(0) for x in (params, restored))
    return np.array_equal(ours, its)


with jo.init():
    ranks = jax.device_count()
    mesh = meshes.make((ranks,), ("dp",))
    train, synchronized = meshes.mapped(mesh, step), meshes.mapped(mesh, synchronize)
    params = meshes.spread(mesh, np.zeros((ranks, 1000), np.float32))
    gradients = meshes.spread(mesh, np.ones((ranks, 1000), np.float32))
    params, live = train(params, gradients)
    for _ in range(9):
        params, live = train(params, gradients)
    print("stepped", int(own(live)))
    if jax.process_index() == 0:
        time.sleep(600)
    params, _, live = synchronized(params)
    print("synced", int(own(live)))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    whole = jax.make_array_from_process_local_data(everywhere, own(params))
    print("saved", save_alone(whole))
print("done")
