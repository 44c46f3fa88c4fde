"""One training run of `tta.py`: the program of a rank.

    tta_train.py CELL.json FOLDER

The program trains, and records the end of each step and, every few steps, the
parameters. It writes into FOLDER `RANK.npz`: `ends_s`, the end of each step since the
begin of the first, in seconds; `accuracies` of the replica of this rank, after the
steps `noted`; `reports`, of each step the shares of contributions and results missing
and of results with deferred data, the deadline in seconds, and the calls skipped;
`parameters`, the final ones.
"""

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import accuracy_models
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from train_ranks import (
    AXIS,
    divided,
    make_optimizer,
    mesh_of_ranks,
    of_this_rank,
    rank_and_ranks,
    replicated,
    shares,
    stepped,
    vector_of,
)

import jax_optireduce
from jax_optireduce import coding

# Steps between two notes of the parameters.
NOTED_EVERY = 5


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The method of averaging gradients.

    Attributes:
      mode: mode of `average_gradients`; None: `lax.pmean`, over Gloo.
      wire_format: format of `average_gradients`, or dtype of `lax.pmean`.
      flat: whether `lax.pmean` reduces all gradients as one array.
      options: options of `jax_optireduce.init`.
      late: ranks of each cluster that coded gradients do without; None: no code.
    """

    mode: str | None
    wire_format: str = "float32"
    flat: bool = False
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    late: int | None = None


# Schemes with default options.
SCHEMES = {
    "Gloo": Scheme(None),
    "Gloo, one array": Scheme(None, flat=True),
    "Gloo, bfloat16": Scheme(None, "bfloat16"),
    "exact": Scheme("exact"),
    "agreed": Scheme("agreed"),
    "bounded": Scheme("bounded"),
    "bounded, auto": Scheme("bounded", "auto"),
    "lossy": Scheme("lossy"),
}


# Gradient coding: late + 1 times the computation.
CODED = {"coded, 1 late": Scheme("lossy", late=1)}


def fixed_schemes() -> dict[str, Scheme]:
    """Returns the fixed settings of `bounded` for the search of the best."""
    return {
        f"bounded, {deadline_ms} ms": Scheme(
            "bounded", options={"deadline_s": deadline_ms / 1000}
        )
        for deadline_ms in (30, 60, 120, 300)
    } | {
        f"bounded, {wire_format}": Scheme("bounded", wire_format)
        for wire_format in ("bfloat16", "int8")
    }


@dataclasses.dataclass(frozen=True)
class Pauses:
    """Pauses of the programs.

    Attributes:
      share: share of the steps before which a rank, or several ranks, pause.
      pause_ms: length of a pause.
      ranks: number of ranks that pause together; 1: independent ranks.
    """

    share: float
    pause_ms: float
    ranks: int = 1

    def drawn(self, seed: int, rank: int, ranks: int, steps: int) -> np.ndarray:
        """Returns the pause of a rank before each step, in seconds."""
        together = self.ranks > 1
        generator = np.random.default_rng([seed, 0 if together else 1 + rank])
        pauses = generator.random(steps) < self.share
        if together:
            order = generator.permuted(np.tile(np.arange(ranks), (steps, 1)), axis=1)
            pauses &= (order[:, : self.ranks] == rank).any(axis=1)
        return pauses * self.pause_ms / 1000


def mean_over_gloo(tree: Any, flat: bool) -> Any:
    """Returns the mean of a tree over the ranks."""
    if not flat:
        return jax.lax.pmean(tree, AXIS)
    vector, restored = jax.flatten_util.ravel_pytree(tree)
    return restored(jax.lax.pmean(vector, AXIS))


def coded_gradients(
    task: accuracy_models.Task,
    plan: coding.Plan,
    state: Any,
    inputs: jax.Array,
    targets: jax.Array,
) -> tuple[Any, Any, jax.Array]:
    """Returns the mean gradients over the batch, the state, and the report."""
    params, inner, coded = state
    mean, coded, report = coding.combine(
        lambda carried: jax.grad(task.loss)(carried[0], inputs, targets),
        coded.replace((params, inner)),
        AXIS,
        plan,
        name="gradients",
    )
    stats = report.stats
    values = (report.error, stats.missing_results, 0.0, stats.deadline_s, 0.0)
    return mean, (*coded.carried, coded.replace(None)), jnp.stack(values)


def make_step(
    task: accuracy_models.Task,
    optimizer: Any,
    scheme: Scheme,
    plan: coding.Plan | None,
) -> Callable[..., Any]:
    """Returns the step of a rank: (state, inputs, targets) -> (state, report)."""

    def averaged(gradients: Any) -> tuple[Any, jax.Array]:
        if scheme.mode is None:
            sent = optax.tree.cast(gradients, scheme.wire_format)
            restored = optax.tree.cast(mean_over_gloo(sent, scheme.flat), jnp.float32)
            return restored, jnp.zeros(5)
        gradients, stats = jax_optireduce.average_gradients(
            gradients,
            AXIS,
            mode=scheme.mode,
            wire_format=scheme.wire_format,
            name="gradients",
            return_stats=True,
        )
        others = jnp.stack([stats.deadline_s, stats.skipped.astype(jnp.float32)])
        return gradients, jnp.concatenate([shares(stats), others])

    def step(state: Any, inputs: jax.Array, targets: jax.Array) -> tuple[Any, Any]:
        if plan is not None:
            found = coded_gradients(task, plan, state, inputs, targets)
            gradients, (params, inner, coded), report = found
        else:
            params, inner, coded = state
            gradients, report = averaged(jax.grad(task.loss)(params, inputs, targets))
        updates, inner = optimizer.update(gradients, inner, params)
        return (optax.apply_updates(params, updates), inner, coded), report

    return step


def batches_of(
    task: accuracy_models.Task, seed: int, plan: coding.Plan | None
) -> Iterator[list[np.ndarray]]:
    """Yields the batches of this rank; with a code those of all ranks of its cluster.

    A whole batch has the same examples with and without a code.
    """
    rank, ranks = rank_and_ranks()
    members = [rank]
    if plan is not None:
        clusters = plan.codes[0].clusters
        members = [r for r in range(ranks) if clusters[r] == clusters[rank]]
    for parts in zip(*(task.batches(seed, r, ranks) for r in members), strict=True):
        yield [np.concatenate(rows) for rows in zip(*parts, strict=True)]


def sleeps_of(
    cell: Mapping[str, Any], plan: coding.Plan | None
) -> tuple[np.ndarray, float]:
    """Returns the pause before each step, and the computation of one, in seconds."""
    rank, ranks = rank_and_ranks()
    compute_s = cell["compute_ms"] / 1000 * (cell["slow"] if rank == ranks - 1 else 1)
    # A coded step computes `load * ranks` times the data of an uncoded one.
    compute_s *= plan.load * ranks if plan else 1
    pauses = np.zeros(cell["steps"])
    if cell["pauses"]:
        drawn = Pauses(**cell["pauses"]).drawn(cell["seed"], rank, ranks, len(pauses))
        pauses += drawn
    return pauses, compute_s


def train(cell: Mapping[str, Any], scheme: Scheme) -> dict[str, Any]:
    """Trains in the open session; returns the figures of this rank."""
    task = accuracy_models.load(cell["task"])
    optimizer = make_optimizer(task, cell["optimizer"])
    rank, ranks = rank_and_ranks()
    mesh = mesh_of_ranks()
    plan = None
    if scheme.late is not None:
        # The batches are those of the task, not of the plan.
        plan = coding.plan(ranks, late=scheme.late, dataset=ranks, batch=ranks)

    def initial() -> Any:
        key = jax.random.key(cell["seed"])
        params = task.model.init(key, task.held_out_inputs[:1])
        return params, optimizer.init(params), coding.start(None) if plan else None

    batches = batches_of(task, cell["seed"], plan)
    state = replicated(mesh, initial)()
    first = divided(mesh, next(batches))
    step = stepped(mesh, make_step(task, optimizer, scheme, plan))
    step = step.lower(state, *first).compile()
    pauses, compute_s = sleeps_of(cell, plan)
    ends_s, notes, reports = [], {}, []
    multihost_utils.sync_global_devices("start")
    began = time.perf_counter()
    for number, pause_s in enumerate(pauses, 1):
        batch = divided(mesh, next(batches))
        # A rank that the others have passed skips the gradient.
        skips = plan is not None and bool(state[2].behind.addressable_data(0))
        time.sleep(pause_s + (0 if skips else compute_s))
        state, report = jax.block_until_ready(step(state, *batch))
        ends_s.append(time.perf_counter() - began)
        reports.append(np.asarray(report.addressable_data(0))[0])
        if number % NOTED_EVERY == 0:
            notes[number] = jax.tree.map(np.array, of_this_rank(state[0]))
        if number == cell["killed_after"] and rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    evaluate = jax.jit(task.evaluate)
    return {
        "ends_s": ends_s,
        "noted": list(notes),
        "accuracies": [float(evaluate(params)[0]) for params in notes.values()],
        "reports": np.array(reports),
        "parameters": vector_of(state[0]),
    }


def main() -> None:
    """Trains the cell of a file."""
    cell = json.loads(Path(sys.argv[1]).read_text())
    scheme = (SCHEMES | CODED | fixed_schemes())[cell["scheme"]]
    if scheme.mode is None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            os.environ["JAX_COORDINATOR_ADDRESS"],
            int(os.environ["JAX_NUM_PROCESSES"]),
            int(os.environ["JAX_PROCESS_ID"]),
        )
        figures = train(cell, scheme)
    else:
        with jax_optireduce.init(**scheme.options):
            figures = train(cell, scheme)
    np.savez(Path(sys.argv[2]) / f"{jax.process_index()}.npz", **figures)


if __name__ == "__main__":
    main()
