"""One training run of `tta.py`: the program of a rank.

    tta_train.py CELL.json FOLDER

The program trains, and records the end of each step and, every few steps, the
parameters. Steps that a rank has missed in a pause count, so all ranks end together. It
writes into FOLDER `RANK.npz`: `ends_s`, the end of each step since the begin of the
first, in seconds; `made`, the numbers of the steps that the rank has made;
`accuracies` of the replica of this rank, after the steps `noted`, and `loss` after the
last of them; `reports`, of each step made the shares of contributions and results
missing and of results with deferred data, the deadline in seconds, the calls skipped,
and the loss of the batch; `parameters`, the final ones; `sent_bytes` of the card.
"""

import dataclasses
import importlib
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
from jax_optireduce.outer import Outer


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The method of averaging gradients.

    Attributes:
      mode: mode of `average_gradients`; None: `lax.pmean`, over Gloo.
      wire_format: format of `average_gradients`, or dtype of `lax.pmean`.
      flat: whether `lax.pmean` reduces all gradients as one array.
      options: options of `jax_optireduce.init`.
      late: ranks of each cluster that coded gradients do without; None: no code.
      powersgd: rank of the factors of PowerSGD; 0: another method.
      every: steps to an outer one, H; 0: another method.
      waits: whether an outer step waits for its calls, which makes its gradients newer,
        so that a gentler optimizer suits them.
      accumulated: batches whose gradients one call averages.
      repeated: whether the gradients of skipped calls make as many updates.
    """

    mode: str | None
    wire_format: str = "float32"
    flat: bool = False
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    late: int | None = None
    powersgd: int = 0
    every: int = 0
    waits: bool = False
    accumulated: int = 1
    repeated: bool = False


SCHEMES = {
    "Gloo": Scheme(None),
    "Gloo, one array": Scheme(None, flat=True),
    "Gloo, bfloat16": Scheme(None, "bfloat16", flat=True),
    "Gloo, accumulated": Scheme(None, flat=True, accumulated=2),
    "exact": Scheme("exact"),
    "agreed": Scheme("agreed"),
    "bounded": Scheme("bounded"),
    "bounded, auto": Scheme("bounded", "auto"),
    "bounded, int8": Scheme("bounded", "int8"),
    "bounded, float4": Scheme("bounded", "float4"),
    "bounded, repeated": Scheme("bounded", repeated=True),
    "bounded, 120 ms": Scheme("bounded", options={"deadline_s": 0.12}),
    "lossy": Scheme("lossy"),
    # Gradient coding: late + 1 times the computation.
    "coded, 1 late": Scheme("lossy", late=1),
    "PowerSGD, rank 4": Scheme("exact", powersgd=4),
    "outer, 10": Scheme("bounded", "float4", every=10),
    "outer, 25": Scheme("bounded", "float4", every=25),
    "outer, 50": Scheme("bounded", "float4", every=50),
    "outer, 25, float32": Scheme("bounded", every=25),
    "outer, 25, waits": Scheme("bounded", "float4", every=25, waits=True),
    # An outer loop without any outer step shows the computation alone.
    "no calls": Scheme("bounded", every=1_000_000),
}

# Parts of an outer loop, steps for a call of it, and the largest deadline, in seconds.
# Source: Streaming DiLoCo has such parts and delays. Chosen: a deadline above the time
# of a call at 1 Mbit/s.
OUTER_PARTS, OUTER_DELAY, OUTER_DEADLINE_S = 4, 5, 30.0

# Position of the calls skipped in a report.
SKIPPED = 4


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


def mean_over_gloo(tree: Any, scheme: Scheme) -> Any:
    """Returns the mean of a tree over the ranks, in its dtypes."""
    if not scheme.flat:
        return jax.lax.pmean(tree, AXIS)
    vector, restored = jax.flatten_util.ravel_pytree(tree)
    sent = vector.astype(scheme.wire_format)
    return restored(jax.lax.pmean(sent, AXIS).astype(vector.dtype))


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
    values = (report.error, stats.missing_results, 0.0, stats.deadline_s, 0.0, 0.0)
    return mean, (*coded.carried, coded.replace(None)), jnp.stack(values)


def make_step(
    task: accuracy_models.Task,
    optimizer: Any,
    scheme: Scheme,
    plan: coding.Plan | None,
) -> Callable[..., Any]:
    """Returns the step of a rank: (state, inputs, targets) -> (state, report)."""

    def averaged(loss: jax.Array, gradients: Any) -> tuple[Any, jax.Array]:
        if scheme.mode is None:
            # The loss is a part of the one array, which costs the least.
            loss, gradients = mean_over_gloo((loss, gradients), scheme)
            return gradients, jnp.stack([*jnp.zeros(5), loss])
        loss = jax_optireduce.pmean(loss, AXIS, mode=scheme.mode, name="loss")
        if scheme.powersgd:  # The optimizer averages them.
            return gradients, jnp.stack([*jnp.zeros(5), loss])
        gradients, stats = jax_optireduce.average_gradients(
            gradients,
            AXIS,
            mode=scheme.mode,
            wire_format=scheme.wire_format,
            name="gradients",
            return_stats=True,
        )
        skipped = stats.skipped.astype(jnp.float32)
        others = jnp.stack([stats.deadline_s, skipped, loss])
        return gradients, jnp.concatenate([shares(stats), others])

    def step(state: Any, inputs: jax.Array, targets: jax.Array) -> tuple[Any, Any]:
        if plan is not None:
            found = coded_gradients(task, plan, state, inputs, targets)
            gradients, (params, inner, coded), report = found
        else:
            params, inner, coded = state
            found = jax.value_and_grad(task.loss)(params, inputs, targets)
            gradients, report = averaged(*found)
        if scheme.repeated:
            skipped = report[SKIPPED].astype(jnp.int32)
            params, inner = apply(optimizer, inner, params, gradients, skipped)
            return (params, inner, coded), report
        updates, inner = optimizer.update(gradients, inner, params)
        return (optax.apply_updates(params, updates), inner, coded), report

    return step


def apply(
    optimizer: Any, state: Any, params: Any, gradients: Any, skipped: jax.Array
) -> tuple[Any, Any]:
    """Makes the updates of the skipped calls, too; see "Pauses" in docs/modes.md."""
    mean = jax.tree.map(lambda g: g / (skipped + 1), gradients)

    def update(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        params, state = carry
        updates, state = optimizer.update(mean, state, params)
        return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, skipped + 1, update, (params, state))


class InStep:
    """Steps that average gradients, or their factors."""

    def __init__(self, step: Callable[..., Any], accumulated: int = 1) -> None:
        """Takes the step of `make_step`, and the number of batches of each."""
        self._mesh = mesh_of_ranks()
        self._step = stepped(self._mesh, step)
        self._accumulated = accumulated

    def start(
        self, initial: Callable[[Any], Any], params: Any, batch: Any
    ) -> tuple[Any, Callable[..., Any]]:
        """Returns the state, and (state, batch, number) -> (state, report)."""
        state = replicated(self._mesh, initial)(params)
        whole = [np.concatenate([rows] * self._accumulated) for rows in batch]
        compiled = self._step.lower(state, *divided(self._mesh, whole)).compile()
        kept: list[Any] = []

        def step(state: Any, batch: Any, number: int) -> tuple[Any, Any]:
            kept.append(batch)
            if number % self._accumulated:
                return state, jnp.zeros(6)
            whole = [np.concatenate(rows) for rows in zip(*kept, strict=True)]
            kept.clear()
            state, report = compiled(state, *divided(self._mesh, whole))
            return state, report.addressable_data(0)[0]

        return state, step

    def model(self, state: Any) -> Any:
        """Returns the parameters for an evaluation."""
        return of_this_rank(state[0])

    def end(self, state: Any) -> Any:
        """Ends the calls under way."""
        return state


class Outwards:
    """Steps of each rank alone, and the outer loop; see `InStep`."""

    def __init__(
        self, task: accuracy_models.Task, optimizer: Any, scheme: Scheme
    ) -> None:
        """States the outer loop."""
        self._outer = Outer(
            optax.sgd(1.0, 0.5, nesterov=True) if scheme.waits else None,
            every=scheme.every,
            parts=OUTER_PARTS,
            delay=0 if scheme.waits else OUTER_DELAY,
            wire_format=scheme.wire_format,
        )

        def inner(params: Any, inner: Any, inputs: Any, targets: Any) -> Any:
            gradients = jax.grad(task.loss)(params, inputs, targets)
            updates, inner = optimizer.update(gradients, inner, params)
            return optax.apply_updates(params, updates), inner

        self._inner = jax.jit(inner)

    def start(
        self, initial: Callable[[Any], Any], params: Any, batch: Any
    ) -> tuple[Any, Callable[..., Any]]:
        """Returns the state, and the step."""
        params, inner, _ = jax.jit(initial)(params)
        compiled = self._inner.lower(params, inner, *batch).compile()

        def step(state: Any, batch: Any, number: int) -> tuple[Any, Any]:
            params, inner, own = state
            params, inner = compiled(params, inner, *batch)
            params, own = self._outer.step(params, own, number)
            return (params, inner, own), jnp.zeros(6)

        return (params, inner, self._outer.init(params)), step

    def model(self, state: Any) -> Any:
        """Returns the parameters after the last outer step."""
        return state[2].anchors

    def end(self, state: Any) -> Any:
        """Ends the calls under way."""
        params, own = self._outer.settle(state[0], state[2])
        return params, state[1], own


def sent_by_card() -> int:
    """Returns the bytes that this host has sent."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


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
    plan = None
    if scheme.late is not None:
        # The batches are those of the task, not of the plan.
        plan = coding.plan(ranks, late=scheme.late, dataset=ranks, batch=ranks)
    if scheme.powersgd:
        # An example: only the hosts have their folder in the path.
        powersgd = importlib.import_module("powersgd").powersgd
        optimizer = optax.chain(powersgd(AXIS, scheme.powersgd), optimizer)

    def initial(params: Any) -> Any:
        return params, optimizer.init(params), coding.start(None) if plan else None

    batches = batches_of(task, cell["seed"], plan)
    if scheme.every:
        loop = Outwards(task, optimizer, scheme)
    else:
        step = make_step(task, optimizer, scheme, plan)
        loop = InStep(step, scheme.accumulated)
    state, step = loop.start(initial, task.start(cell["seed"]), next(batches))
    pauses, compute_s = sleeps_of(cell, plan)
    number, steps, every = 0, cell["steps"], task.noted_every
    ends_s, made, notes, reports = np.zeros(steps), [], {}, []
    multihost_utils.sync_global_devices("start")
    sent_bytes = sent_by_card()
    began = time.perf_counter()
    while number < steps:
        before, number = number, number + 1
        batch = next(batches)
        # A rank that the others have passed skips the gradient.
        skips = plan is not None and bool(state[2].behind.addressable_data(0))
        time.sleep(pauses[before] + (not skips) * compute_s)
        state, report = jax.block_until_ready(step(state, batch, number))
        reports.append(np.asarray(report))
        # All ranks end together: steps that a rank has missed count.
        number = min(number + int(reports[-1][SKIPPED]), steps)
        made.append(number)
        ends_s[before:number] = time.perf_counter() - began
        for noted in range(before // every + 1, number // every + 1):
            notes[every * noted] = jax.tree.map(np.array, loop.model(state))
        if 0 < cell["killed_after"] <= number and rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    sent_bytes = sent_by_card() - sent_bytes
    state = loop.end(state)
    evaluate = jax.jit(task.evaluate)
    found = np.array([evaluate(params) for params in notes.values()])
    return {
        "ends_s": ends_s,
        "made": made,
        "noted": list(notes),
        "accuracies": found[:, 0],
        "loss": found[-1, 1],
        "reports": np.array(reports),
        "parameters": vector_of(loop.model(state)),
        "sent_bytes": sent_bytes,
    }


def main() -> None:
    """Trains the cell of a file."""
    cell = json.loads(Path(sys.argv[1]).read_text())
    scheme = SCHEMES[cell["scheme"]]
    options = dict(scheme.options)
    if scheme.every:
        options["deadline_max_s"] = OUTER_DEADLINE_S
    if scheme.mode is None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            os.environ["JAX_COORDINATOR_ADDRESS"],
            int(os.environ["JAX_NUM_PROCESSES"]),
            int(os.environ["JAX_PROCESS_ID"]),
        )
        figures = train(cell, scheme)
    else:
        with jax_optireduce.init(**options):
            figures = train(cell, scheme)
    np.savez(Path(sys.argv[2]) / f"{jax.process_index()}.npz", **figures)


if __name__ == "__main__":
    main()
