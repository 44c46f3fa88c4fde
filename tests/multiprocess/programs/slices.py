"""Training on slices of two processes that continues without the slice of a dead one.

Axis "data" joins the slices, in calls of this package; axis "model" the processes of a
slice. Arguments: "joined", where each step also has sums of XLA over "model", or
"apart"; the slice that dies; and the number of steps after its death. Gradients are
multiples of six, as in `survivors`. Prints

  "log <line>"       for each line of the log
  "step <number>"    after each step, and "alone <live processes>" after the first one
                     without the slice
  "bits <digest>"    of the parameters after a drain and a resync
  "conserved <largest error>"
                     of the effect of all later steps and a drain on parameters of
                     zero, compared with the gradients of the live slices
  "done"             at the end; a call that fails is an uncaught exception
"""

import logging
import sys
import time

import jax
import meshes
import numpy as np
from jax import lax

import jax_optireduce as jo

JOINED, DEAD_SLICE, STEPS = sys.argv[1] == "joined", int(sys.argv[2]), int(sys.argv[3])
ENTRIES, STEP_S = 20_000, 0.04


def own(x):
    """Returns this process's row, in double precision."""
    (row,) = meshes.rows_here(x).values()
    return row.astype(np.float64)


def step(params, gradient):
    mean, report = jo.average_gradients(
        gradient, "data", name="gradients", return_stats=True
    )
    loss = gradient.sum()
    live = report.live_processes
    if JOINED:
        loss = lax.psum(loss, "model")
        # The two calls may change their members in different steps.
        live = lax.pmin(live, "model")
    loss = jo.pmean(loss, "data", mode="bounded", name="loss")
    return params - mean, live, loss


def end(params):
    drained = params - jo.drain(params, "data", name="gradients")
    return drained, jo.resync(drained, "data")


logging.basicConfig(format="log %(message)s")
with jo.init():
    slices = jax.process_count() // 2
    mesh = jax.make_mesh(
        (slices, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    train, synchronize = meshes.mapped(mesh, step), meshes.mapped(mesh, end)
    random = np.random.default_rng(1)
    column = jax.process_index() % 2

    def gradients():
        """Returns the gradient of each process."""
        shape = (jax.process_count(), ENTRIES)
        return 6.0 * random.integers(-9, 10, shape).astype(np.float32)

    fresh = meshes.spread(mesh, np.zeros((jax.process_count(), ENTRIES), np.float32))
    params = fresh
    number, live = 0, slices
    while live == slices:
        time.sleep(STEP_S)
        params, report, _ = train(params, meshes.spread(mesh, gradients()))
        live = int(own(report))
        print("step", number)
        number += 1
    print("alone", live)
    _, params = synchronize(params)
    print("bits", column, meshes.digest(own(params)))
    # The slices may have made different numbers of steps.
    random = np.random.default_rng(2)
    params, expected = fresh, 0.0
    left = [i for i in range(slices) if i != DEAD_SLICE]
    for _ in range(STEPS):
        time.sleep(STEP_S)
        rows = gradients()
        expected -= rows[column::2][left].mean(0, dtype=np.float64)
        params, _, _ = train(params, meshes.spread(mesh, rows))
    drained, _ = synchronize(params)
    print("conserved", np.abs(own(drained) - expected).max())
print("done")
