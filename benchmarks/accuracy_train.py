"""The training runs of `accuracy.py`: all its cells in one set of processes.

    python -m jax_optireduce launch -n 4 benchmarks/accuracy_train.py in.json out.jsonl

Every cell has a separate session, with its own faults and deadline. Compiled programs
are reused: a program uses the open session. The plain step, and that of ACCO, are those
of `examples/overlapped_steps.py`.
"""

import dataclasses
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accuracy_models
import jax
import jax.numpy as jnp
import numpy as np
import results
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from train_ranks import (
    AXIS,
    DIVIDED,
    EVERYWHERE,
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

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import overlapped_steps as steps


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The calls of a training.

    Attributes:
      mode: of the calls.
      step: "plain" or "ACCO"; see docs/overlap.md.
      late: share of each gradient that joins the next step, drawn at random.
    """

    mode: str
    step: str = "plain"
    late: float = 0.0


SCHEMES = {
    "exact": Scheme("exact"),
    "lossy": Scheme("lossy"),
    "bounded": Scheme("bounded"),
    "exact, ACCO": Scheme("exact", "ACCO"),
    "bounded, ACCO": Scheme("bounded", "ACCO"),
    **{f"{late} % late": Scheme("exact", late=late / 100) for late in (10, 25, 50)},
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training run; the same on every rank.

    Attributes:
      task: "fashion" or "text".
      optimizer: "sgd" (with momentum) or "adamw".
      scheme: of `SCHEMES`.
      lost_percent: share of the datagrams that are lost.
      seed: of the parameters, the order of the examples and the lost datagrams.
      steps: of the optimizer.
    """

    task: str
    optimizer: str
    scheme: str
    lost_percent: int
    seed: int
    steps: int

    def options(self) -> dict[str, Any]:
        """Returns the arguments of `jax_optireduce.init`."""
        if not self.lost_percent:
            return {}
        # Losses differ by rank; a host has fewer than 64 ranks.
        seed = 64 * self.seed + jax.process_index()
        return {"faults": {"loss": self.lost_percent / 100, "seed": seed}}


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled functions of a task, an optimizer and a scheme."""

    initial: Callable[..., Any]
    start: Callable[..., Any]
    step: Callable[..., Any]
    evaluate: Callable[..., Any]


def training(
    task: accuracy_models.Task, optimizer: Any, scheme: Scheme
) -> steps.Training:
    """Returns the training for the steps of the example."""
    return steps.Training(
        loss=lambda params, rows: task.loss(params, *rows),
        optimizer=optimizer,
        axis=AXIS,
        mode=scheme.mode,
    )


def make_step(how: steps.Training, scheme: Scheme) -> Callable[..., Any]:
    """Returns (state, inputs, targets) -> (state, shares) of a rank."""

    def step(state: steps.State, *rows: jax.Array) -> tuple[steps.State, jax.Array]:
        if scheme.step == "ACCO":
            second, first = zip(*(jnp.split(x, 2) for x in rows), strict=True)
            state, stats = steps.acco_step(state, second, first, how)
        elif scheme.late:
            state, stats = late_step(state, rows, how, scheme.late)
        else:
            state, stats = steps.plain_step(state, rows, how)
        return state, jnp.mean(jnp.stack([shares(each) for each in stats]), axis=0)

    return step


def late_step(
    state: steps.State, rows: steps.Batch, how: steps.Training, share: float
) -> tuple[steps.State, steps.Stats]:
    """A random part of a gradient joins the next step, as data that misses a call."""
    params, inner, (held, number) = state
    vector, restored = ravel_pytree(jax.grad(how.loss)(params, rows))
    key = jax.random.fold_in(jax.random.key(number), jax.lax.axis_index(AXIS))
    late = jax.random.bernoulli(key, share, vector.shape)
    means, stats = jax_optireduce.average_gradients(
        restored(jnp.where(late, 0, vector) + held),
        AXIS,
        mode=how.mode,
        name=steps.NAME,
        return_stats=True,
    )
    held = jnp.where(late, vector, 0)
    params, inner = steps.updated(params, inner, means, how)
    return steps.State(params, inner, (held, number + 1)), [stats]


def make_start(how: steps.Training, scheme: Scheme) -> Callable[..., Any]:
    """Returns (params, inputs, targets) -> the first state of a rank.

    ACCO begins the call of the first half of the first batch.
    """

    def start(params: Any, *rows: jax.Array) -> steps.State:
        state = steps.State(params, how.optimizer.init(params), None)
        if scheme.late:
            nothing = jnp.zeros_like(ravel_pytree(params)[0])
            state = state._replace(handle=(nothing, jnp.uint32(0)))
        if scheme.step == "ACCO":
            first = tuple(x[: len(x) // 2] for x in rows)
            state = steps.acco_start(state, first, how)
        return state

    return start


def batches_of(
    task: accuracy_models.Task, scheme: Scheme, seed: int
) -> Iterator[list[np.ndarray]]:
    """Yields the batches of this rank: the first one is that of the start.

    A step of ACCO has the second half of a batch, and the first one of the next batch.
    """
    batches = task.batches(seed, *rank_and_ranks())
    before = next(batches)
    yield before
    half = task.batch_per_rank // 2
    for following in batches:
        if scheme.step != "ACCO":
            yield before
        else:
            pairs = zip(before, following, strict=True)
            yield [np.concatenate([a[half:], b[:half]]) for a, b in pairs]
        before = following


@functools.cache
def compiled(
    mesh: Mesh, task_name: str, optimizer_name: str, scheme: Scheme
) -> Programs:
    """Returns the programs of all cells of this kind."""
    task = accuracy_models.load(task_name)
    how = training(task, make_optimizer(task, optimizer_name), scheme)

    def initial(seed: jax.Array) -> Any:
        return task.model.init(jax.random.key(seed), task.held_out_inputs[:1])

    initial = replicated(mesh, initial)
    rows = divided(mesh, next(task.batches(0, *rank_and_ranks())))
    started = jax.shard_map(
        make_start(how, scheme),
        mesh=mesh,
        check_vma=False,
        in_specs=(EVERYWHERE, DIVIDED, DIVIDED),
        out_specs=EVERYWHERE,
    )
    params = initial(np.uint32(0))
    start = jax.jit(started).lower(params, *rows).compile()
    step = stepped(mesh, make_step(how, scheme))
    return Programs(
        initial=initial,
        start=start,
        step=step.lower(start.out_info, *rows).compile(),
        evaluate=jax.jit(task.evaluate),
    )


def train(cell: Cell, mesh: Mesh) -> dict[str, Any]:
    """Trains one cell in the open session, and returns its figures."""
    scheme = SCHEMES[cell.scheme]
    programs = compiled(mesh, cell.task, cell.optimizer, scheme)
    params = programs.initial(np.uint32(cell.seed))
    batches = batches_of(accuracy_models.load(cell.task), scheme, cell.seed)
    first = divided(mesh, next(batches))
    seconds, reports = [], []
    multihost_utils.sync_global_devices("start")
    began = time.perf_counter()
    state = programs.start(params, *first)
    for rows in itertools.islice(batches, cell.steps):
        batch = divided(mesh, rows)
        start = time.perf_counter()
        state, report = jax.block_until_ready(programs.step(state, *batch))
        seconds.append(time.perf_counter() - start)
        reports.append(of_this_rank(report)[0])
    elapsed = time.perf_counter() - began
    params, own = of_this_rank(state.params), vector_of(state.params)
    figures = [*np.asarray(programs.evaluate(params)), *np.mean(reports, axis=0)]
    return {
        **dataclasses.asdict(cell),
        **across_ranks(own, np.float32(figures)),
        "step_ms": 1000 * elapsed / cell.steps,
        "step_ms_p50": 1000 * float(np.percentile(seconds, 50)),
        "step_ms_p99": 1000 * float(np.percentile(seconds, 99)),
    }


def across_ranks(own: np.ndarray, figures: np.ndarray) -> dict[str, Any]:
    """Returns the figures that compare the ranks.

    Args:
      own: parameters of this rank, float32 [n].
      figures: accuracy, loss, and shares of contributions and results missing and of
        results with deferred data, float32 [5].
    """
    replicas = gather(own).astype(np.float64)
    mean_replica = replicas.mean(axis=0)
    distances = np.linalg.norm(replicas - mean_replica, axis=1)
    table = gather(figures).astype(np.float64)
    return {
        "accuracy_by_rank": table[:, 0].tolist(),
        "loss_by_rank": table[:, 1].tolist(),
        "missing_contributions": table[:, 2].mean(),
        "missing_results": table[:, 3].mean(),
        "deferred": table[:, 4].mean(),
        "drift": distances.mean() / np.linalg.norm(mean_replica),
        "parameters": int(own.size),
    }


def gather(row: np.ndarray) -> np.ndarray:
    """Returns the rows of all ranks, [ranks, n]."""
    return multihost_utils.process_allgather(row).reshape(-1, row.size)


def main() -> None:
    """Runs all cells of a file; rank 0 appends the figures to another file."""
    cells_path, results_path = map(Path, sys.argv[1:])
    cells = [Cell(**fields) for fields in json.loads(cells_path.read_text())]
    # A first session initialises JAX, whose devices the mesh needs.
    jax_optireduce.init().close()
    mesh = mesh_of_ranks()
    began = time.perf_counter()
    for number, cell in enumerate(cells, 1):
        with jax_optireduce.init(**cell.options()):
            figures = train(cell, mesh)
            multihost_utils.sync_global_devices("end")
        if jax.process_index() != 0:
            continue
        results.append(results_path, figures)
        per_cell = (time.perf_counter() - began) / number
        print(
            f"{number}/{len(cells)} {cell.task} {cell.optimizer} {cell.scheme} "
            f"{cell.lost_percent} % lost seed {cell.seed}: accuracy "
            f"{100 * np.mean(figures['accuracy_by_rank']):.1f} %, "
            f"{figures['step_ms']:.0f} ms a step; "
            f"{per_cell * (len(cells) - number) / 60:.0f} min left",
            flush=True,
        )


if __name__ == "__main__":
    main()
