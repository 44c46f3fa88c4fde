"""A training whose last rank dies before the others save a checkpoint.

Argument: the folder of the checkpoint. Prints

  "stepped <live processes>" after the steps; the last rank then waits to be killed
  "synced <live processes>"  after the resync
  "saved <equal>"            process 0: whether the restored parameters are the same
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


def save_alone(params: np.ndarray) -> bool:
    """Saves without the other processes; returns whether it can be restored."""
    alone = ocp.options.MultiprocessingOptions(
        primary_host=0, active_processes={0}, barrier_sync_key_prefix="alone"
    )
    checkpointer = ocp.StandardCheckpointer(multiprocessing_options=alone)
    checkpointer.save(FOLDER, {"params": params})
    checkpointer.wait_until_finished()
    return np.array_equal(checkpointer.restore(FOLDER)["params"], params)


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
    if jax.process_index() == ranks - 1:
        time.sleep(600)
    params, _, live = synchronized(params)
    print("synced", int(own(live)))
    if jax.process_index() == 0:
        print("saved", save_alone(own(params)))
print("done")
