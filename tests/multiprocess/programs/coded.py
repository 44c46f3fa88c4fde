"""Coded training beside uncoded training, with late and killed ranks.

Arguments: steps; code; ranks that sleep before each step, separated by commas; rank
that is killed, or -1: after a fifth of the steps, once no other rank is late but those
that sleep. Until then ranks begin each step together, and it is the last one, so that
the others are in time however busy the machine is. Each rank trains without a code
first: by the mean over the whole batch in mode "exact", all ranks in time. Prints

  "error <e>"        largest difference of the parameters from those of that training
  "bits <digest>"    of the parameters
  "inexact <n>"      steps with an inexact gradient
  "without <i> <n>"  steps that did without rank i
  "longest <s>"      longest call, in seconds
  "ended <step> ..." for rank 0: the steps that the sleeping ranks have begun by then
"""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import events
import jax
import jax.numpy as jnp
import meshes
import numpy as np

import jax_optireduce as jo
from jax_optireduce import coding
from jax_optireduce._jax import coordination

STEPS, CODE = int(sys.argv[1]), sys.argv[2]
SLEEPING = [int(rank) for rank in sys.argv[3].split(",") if rank]
KILLED = int(sys.argv[4])
# Chosen: 20 times a step on an idle machine.
SLEEP_S = 0.25
# Chosen: the others are in time before it, on a busy machine too.
LAST_S = 0.5
EXAMPLES, BATCH, RATE = 240, 48, 0.05


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the loss of each example."""
    hidden = jnp.tanh(x @ params["hidden"] + params["bias"])
    return (hidden @ params["out"] - y) ** 2


def initial() -> Any:
    """Returns the first parameters, and their momentum."""
    draw = np.random.default_rng(0)
    params = {
        "hidden": draw.standard_normal((6, 8), np.float32) / 3,
        "bias": np.zeros(8, np.float32),
        "out": draw.standard_normal(8, np.float32) / 3,
    }
    return params, jax.tree.map(np.zeros_like, params)


def updated(carried: Any, gradient: Any) -> Any:
    """Returns parameters and momentum after a step of SGD."""
    params, momentum = carried
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - RATE * m, params, momentum), momentum


class Training:
    """Both trainings of this rank."""

    def __init__(self) -> None:
        """Makes the data and the plan."""
        self.mesh = meshes.make((jax.device_count(),), ("dp",))
        draw = np.random.default_rng(1)
        self.x = draw.standard_normal((EXAMPLES, 6), np.float32)
        self.y = np.sin(self.x.sum(axis=1))
        self.ranks, self.rank = jax.device_count(), jax.process_index()
        self.reports: list[Any] = []  # reports of the steps of the training that runs
        self.plan = coding.plan(
            self.ranks, late=1, dataset=EXAMPLES, batch=BATCH, code=CODE
        )

    def uncoded(self, carried: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
        """Takes a step with the mean of the gradients of all ranks."""
        gradient = jax.grad(lambda p: loss(p, x, y).mean())(carried[0])
        return updated(carried, jo.pmean(gradient, "dp", name="uncoded")), ()

    def coded(
        self, state: Any, x: jax.Array, y: jax.Array, weights: jax.Array
    ) -> tuple[Any, Any]:
        """Takes a step without the late ranks."""

        def gradient(carried: Any) -> Any:
            return jax.grad(lambda p: loss(p, x, y) @ weights)(carried[0])

        mean, state, report = coding.combine(
            gradient, state, "dp", self.plan, name="coded"
        )
        state = state.replace(updated(state.carried, mean))
        return state, (report.exact, report.missing[0], report.stats.elapsed_s)

    def train(self, step: Any, state: Any, batches: Any) -> tuple[Any, list[Any]]:
        """Returns the last state of this rank, and the reports of its steps."""
        reports = self.reports = []
        name, step = step.__name__, meshes.mapped(self.mesh, step)

        def rows(values: Any) -> jax.Array:
            own = np.asarray(values)
            shape = (self.ranks, *own.shape)
            return meshes.spread(self.mesh, np.broadcast_to(own, shape))

        def own(tree: Any) -> Any:
            return jax.tree.map(lambda a: np.asarray(a.addressable_data(0)[0]), tree)

        state = jax.tree.map(rows, state)
        for batch in batches:
            given = (state, *map(rows, batch))
            if not reports:
                step = step.lower(*given).compile()
                # No rank is late because it still compiles.
                coordination.exchange(f"compiled {name}", b"here", 60.0)
            state, report = step(*given)
            reports.append(own(report))
        return own(state), reports

    def shares(self) -> Iterator[Any]:
        """Yields the share of this rank of each batch."""
        for step in range(STEPS):
            every = [self.plan.examples(rank, step) for rank in range(self.ranks)]
            batch = np.unique(np.concatenate(every))
            own = batch.reshape(self.ranks, -1)[self.rank]
            yield self.x[own], self.y[own]

    def alone_is_missed(self) -> bool:
        """Whether the others will lack this rank alone, and ranks that sleep."""
        _, missing, _ = self.reports[-1]
        return set(np.flatnonzero(missing)) <= set(SLEEPING)

    def work(self) -> Iterator[Any]:
        """Yields the examples of this rank, late if it is one that sleeps."""
        together = KILLED >= 0
        for step in range(STEPS):
            if self.rank in SLEEPING:
                path_of(self.rank).with_suffix(".begun").write_text(str(step))
                time.sleep(SLEEP_S)
            if together:
                ends = self.rank == KILLED and step >= STEPS // 5
                ends = ends and self.alone_is_missed()
                word = b"ends" if ends else b"goes on"
                together = b"ends" not in coordination.exchange(
                    f"step {step}", word, 60.0
                )
                if ends:
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.rank == KILLED:
                    time.sleep(LAST_S)
            own = self.plan.examples(self.rank, step)
            yield self.x[own], self.y[own], self.plan.weights(self.rank)


def path_of(rank: int) -> Path:
    """Returns a file of a rank, for the other ranks."""
    folder = Path(os.environ["JAX_OPTIREDUCE_FLIGHT_RECORD_DIR"])
    folder.mkdir(exist_ok=True)
    return folder / f"rank {rank}"


def main() -> None:
    """Trains twice."""
    training = Training()
    expected, _ = training.train(training.uncoded, initial(), training.shares())
    first = coding.start(initial())
    state, reports = training.train(training.coded, first, training.work())
    begun = [path_of(rank).with_suffix(".begun").read_text() for rank in SLEEPING]
    params = jax.tree.leaves(state.carried)
    pairs = zip(params, jax.tree.leaves(expected), strict=True)
    print("error", max(float(np.abs(a - b).max()) for a, b in pairs))
    print("bits", hashlib.sha256(b"".join(a.tobytes() for a in params)).hexdigest())
    exact, missing, elapsed = (np.array(part) for part in zip(*reports, strict=True))
    print("inexact", int((~exact).sum()))
    for i, count in enumerate(missing.sum(axis=0)):
        print("without", i, int(count))
    print("longest", float(elapsed.max()))
    print("ended", *begun, flush=True)
    # The end of process 0 is that of the others.
    events.happens(f"rank {training.rank} has ended")
    events.wait_for(*(f"rank {rank} has ended" for rank in SLEEPING))


if __name__ == "__main__":
    with jo.init():
        main()
