"""Training that continues without a rank that is killed or stopped.

Arguments: the mode of the loss, the seconds of a step, the number of steps after the
death, and optionally "first" if the first ranks die, not the last ones. Gradients are
multiples of twelve, so that data that is lost, added twice or divided by a wrong number
of ranks causes an error of at least one. Prints

  "log <line>"    for each line of the log
  "step <number>" after each step, and "alone <live processes>" after the first one
                  without the rank
  "bits <digest>" of the parameters after a drain and a resync
  "conserved <largest error> <live processes> <largest share late>"
                  of the effect of all later steps and a drain on parameters of zero,
                  compared with the gradients of the live ranks
  "drift <of each rank>" of parameters that differ: row i is i + 1
  "done"          at the end
  "typed <type> <ranks>"
                  of the error of a call, which is then an uncaught exception
"""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import meshes
import numpy as np

import jax_optireduce as jo

LOSS_MODE, STEP_S, STEPS = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
FIRST_DIE = sys.argv[4:] == ["first"]
ENTRIES = 50_000


@contextlib.contextmanager
def shown_errors() -> Iterator[None]:
    """Prints the type of an error, which passes."""
    try:
        with jo.typed_errors():
            yield
    except jo.CollectiveError as error:
        print("typed", type(error).__name__, *error.ranks)
        raise


def own(x: jax.Array) -> np.ndarray:
    """Returns this process's row, in double precision."""
    (row,) = meshes.rows_here(x).values()
    return row.astype(np.float64)


def step(params: Any, gradient: Any) -> Any:
    """Makes a step of SGD with the rate 1, and the loss that a program would log."""
    mean, report = jo.average_gradients(
        gradient, "dp", name="gradients", return_stats=True
    )
    loss = jo.pmean(gradient.sum(), "dp", mode=LOSS_MODE, name="loss")
    return params - mean, report, loss


def end(params: Any) -> Any:
    """Adds the data in flight, and then makes replicas equal."""
    drained = params - jo.drain(params, "dp", name="gradients")
    return drained, jo.resync(drained, "dp")


logging.basicConfig(format="log %(message)s")
with jo.init() as communicator, shown_errors():
    mesh = meshes.make((jax.device_count(),), ("dp",))
    train, synchronize = meshes.mapped(mesh, step), meshes.mapped(mesh, end)
    random = np.random.default_rng(1)
    ranks = jax.device_count()

    def gradients() -> np.ndarray:
        """Returns the gradient of each rank."""
        return 12.0 * random.integers(-9, 10, (ranks, ENTRIES)).astype(np.float32)

    fresh = meshes.spread(mesh, np.zeros((ranks, ENTRIES), np.float32))
    params = fresh
    number, live = 0, ranks
    while live == ranks:
        time.sleep(STEP_S)
        params, report, _ = train(params, meshes.spread(mesh, gradients()))
        live = int(own(report.live_processes))
        print("step", number)
        number += 1
    print("alone", live)
    _, params = synchronize(params)
    print("bits", meshes.digest(own(params)))
    # The ranks may have made different numbers of steps.
    random = np.random.default_rng(2)
    params, expected, late = fresh, 0.0, 0.0
    for _ in range(STEPS):
        time.sleep(STEP_S)
        rows = gradients()
        living = rows[-live:] if FIRST_DIE else rows[:live]
        expected -= living.astype(np.float64).mean(0)
        params, report, _ = train(params, meshes.spread(mesh, rows))
        late = max(late, own(report.missing_contributions + report.missing_results))
    drained, synced = synchronize(params)
    error = np.abs(own(drained) - expected).max()
    print("conserved", error, communicator.counters()["live_processes"], late)
    # The removed rank is left out.
    jo.assert_replicas_equal(own(synced))
    drift = meshes.mapped(mesh, lambda x: jo.replica_drift(x, "dp"))
    numbers = np.arange(1, ranks + 1, dtype=np.float32)[:, None]
    unequal = fresh + meshes.spread(mesh, numbers)
    print("drift", *own(drift(unequal)))
print("done")
