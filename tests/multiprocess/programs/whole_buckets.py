"""Steps that identify, in both halves of a bucket, the contributions by rank and step.

Arguments: the seconds of a step, and the number of steps after one rank has gone. Each
rank contributes a number at its own place for each step, once in either half; with two
lanes each sends one half. Prints

  "log <line>"    for each line of the log
  "step <number>" after each step
  "alone <live processes>" after the first step without a rank
  "strange <numbers>" at the end, in each half: contributions that count twice, or come
                  from a rank that the report of their step does not count
  "done"          at the end; a call that fails is an uncaught exception
"""

import logging
import sys
import time
from typing import Any

import jax
import meshes
import numpy as np

import jax_optireduce as jo

STEP_S, STEPS = float(sys.argv[1]), int(sys.argv[2])
# Chosen: more steps than a test has time for; a half is far more than 1 MiB.
HALF = 200_000


def own(x: jax.Array) -> np.ndarray:
    """Returns this process's row, in double precision."""
    (row,) = meshes.rows_here(x).values()
    return row.astype(np.float64)


def step(gradient: Any) -> Any:
    """Returns the mean, and the report of the call."""
    return jo.average_gradients(gradient, "dp", name="gradients", return_stats=True)


logging.basicConfig(format="log %(message)s")
with jo.init() as communicator:
    ranks = jax.device_count()
    mesh = meshes.make((ranks,), ("dp",))
    train = meshes.mapped(mesh, step)
    sums, counted = np.zeros(2 * HALF), []
    left = STEPS
    while left > 0:
        number = len(counted)
        time.sleep(STEP_S)
        rows = np.zeros((ranks, 2, HALF), np.float32)
        for rank in range(ranks):
            # 12 is divided by three and by four without rounding.
            rows[rank, :, number * ranks + rank] = 12.0
        mean, report = train(meshes.spread(mesh, rows.reshape(ranks, -1)))
        live = int(own(report.live_processes))
        sums += own(mean) * live
        counted.append(live)
        print("step", number)
        if live < ranks:
            if left == STEPS:
                print("alone", live)
            left -= 1
    times = (sums.reshape(2, HALF) / 12.0)[:, : len(counted) * ranks]
    times = times.reshape(2, len(counted), ranks)
    # The last ranks are the ones that go.
    expected = np.arange(ranks) < np.array(counted)[:, None]
    # One that stands for absent ranks as well counts more than once, less than twice.
    most = np.where(expected, 1.99, 0.01)
    print("strange", *((times > most).sum(axis=(1, 2))))
print("done")
