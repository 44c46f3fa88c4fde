"""Calls that do not wait, while the test disturbs the last rank.

Arguments: number of calls, seconds that the last rank sleeps before each, "sum" or
"mean", and optionally the call after which the last rank stops itself. Prints

  "log <line>"                for each line of the log
  "call <number>"             when a call has ended, counted from 10
  "conserved <largest error> <share deferred>"
                              after a drain: the error of the total of all calls and
                              the drain, compared with the contributions of all ranks,
                              in whole numbers; of sums
  "weights <least> <most>"    of means, the least and the largest quotient of the total
                              and the contributions, over the elements
  "over <calls>"              calls that were over before this rank made them
  "skipped <calls>"           calls of the others that this rank has skipped
"""

import logging
import os
import signal
import sys
import time
from typing import Any

import jax
import meshes
import numpy as np

import jax_optireduce as jo

CALLS, SLEEP_S, MEAN = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "mean"
STOPS_AFTER = int(sys.argv[4]) if len(sys.argv) > 4 else 0


def own(x: jax.Array) -> np.ndarray:
    """Returns this process's row, in double precision."""
    (row,) = meshes.rows_here(x).values()
    return row.astype(np.float64)


def run(mesh: jax.sharding.Mesh) -> None:
    """Makes the calls and the drain."""

    def step(tree: Any) -> Any:
        reduce = jo.average_gradients if MEAN else jo.psum
        return reduce(tree, "dp", mode="bounded", name="grads", return_stats=True)

    def end(tree: Any) -> Any:
        return jo.drain(tree, "dp", name="grads", mean=MEAN)

    call, drain = meshes.mapped(mesh, step), meshes.mapped(mesh, end)
    random = np.random.default_rng(1)
    ranks = jax.device_count()
    factor = ranks if MEAN else 1
    last = jax.process_index() == jax.process_count() - 1
    given, got, carried, over, skipped = 0.0, 0.0, 0.0, 0, 0
    for number in range(10, 10 + CALLS):
        rows = random.integers(1, 100, (ranks, 50_000)).astype(np.float32)
        given += rows.astype(np.float64).sum(0)
        time.sleep(SLEEP_S if last else 0)
        result, report = jax.block_until_ready(call(meshes.spread(mesh, rows)))
        print("call", number, flush=True)
        if last and number == STOPS_AFTER:
            os.kill(os.getpid(), signal.SIGSTOP)
        got += own(result) * factor
        carried += own(report.deferred)
        over += own(report.deadline_s) == 0
        skipped += int(own(report.skipped))
    got += own(drain(result)) * factor
    if MEAN:
        print("weights", (got / given).min(), (got / given).max(), flush=True)
    else:
        print("conserved", np.abs(got - given).max(), carried / CALLS, flush=True)
    print("over", over, flush=True)
    print("skipped", skipped, flush=True)


logging.basicConfig(format="log %(message)s")
with jo.init():
    run(meshes.make((jax.device_count(),), ("dp",)))
