"""The training of the programs for fine-tuning: step, checkpoints and loop.

A checkpoint has the trained parameters, the state of the optimizer, late gradients and
the step. In mode `exact` a resumed training ends with the bits of one that was never
interrupted.
"""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import finetune_setup
import hugging_face
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from finetune_setup import Rows
from hugging_face import InputError
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from training_progress import Progress

import jax_optireduce
from jax_optireduce import CollectiveStats

# The name of the gradients' call, which the drain repeats.
NAME = "gradients"


class State(NamedTuple):
    """The state of a training; a checkpoint has exactly this and the step.

    Attributes:
      params: the trained parameters.
      optimizer: state of the optimizer.
      rest: late gradients that a drain has returned. They join the gradients of the
        next step: AdamW would turn them alone into a whole update.
    """

    params: Any
    optimizer: Any
    rest: Any


# (params, constants, tokens) -> the mean loss of sequences; only `params` are trained.
LossFunction = Callable[[Any, Any, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of a training.

    Attributes:
      step: (state, tokens) -> (params, optimizer, loss, statistics).
      synchronize: state -> (state with equal replicas and no data in flight,
        statistics of the call).
    """

    step: Callable[..., Any]
    synchronize: Callable[[State], tuple[State, CollectiveStats]]


def make_program(
    args: argparse.Namespace,
    loss_fn: LossFunction,
    constants: Any,
    optimizer: Any,
    state: State,
) -> Program:
    """Returns the functions of a training.

    Args:
      args: the common options.
      loss_fn: loss of a part of the batch.
      constants: its second argument.
      optimizer: an Optax transformation.
      state: for its shardings.
    """
    specs = jax.tree.map(lambda x: x.sharding, state)
    call: Any = {"name": NAME, "mode": args.mode, "specs": specs.params}

    def mean_gradients(params: Any, constants: Any, tokens: jax.Array) -> Any:
        def add(total: Any, part: jax.Array) -> tuple[Any, None]:
            one = jax.value_and_grad(loss_fn)(params, constants, part)
            return jax.tree.map(jnp.add, total, one), None

        # The gradients of the parts are added up before the call.
        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        total, _ = lax.scan(add, zeros, parts(tokens, args.accumulate))
        loss, gradients = jax.tree.map(lambda x: x / args.accumulate, total)
        gradients, stats = jax_optireduce.average_gradients(
            gradients, "data", **call, return_stats=True
        )
        loss = jax_optireduce.pmean(loss, "data", mode=args.mode, name="loss")
        return loss, gradients, stats

    average = jax_optireduce.over_slow_axis(mean_gradients, "data", batch_argnums=2)

    def update(
        params: Any, opt_state: Any, rest: Any, constants: Any, tokens: jax.Array
    ) -> Any:
        loss, gradients, stats = average(params, constants, tokens)
        gradients = jax.tree.map(jnp.add, gradients, rest)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss, stats

    def synchronize(state: State) -> tuple[State, CollectiveStats]:
        rest = jax_optireduce.drain(state.params, "data", **call)
        state = state._replace(rest=rest)
        return jax_optireduce.resync(state, "data", specs=specs, return_stats=True)

    of_ranks = jax_optireduce.over_slow_axis(synchronize, "data")
    updated = jax.jit(update, donate_argnums=(0, 1))
    return Program(
        lambda state, tokens: updated(*state, constants, tokens), jax.jit(of_ranks)
    )


def divided(rows: np.ndarray) -> jax.Array:
    """Makes a global array of rows, divided over all devices."""
    place = NamedSharding(jax.sharding.get_mesh(), P(("data", "fsdp")))
    return jax.make_array_from_callback(rows.shape, place, rows.__getitem__)


def parts(rows: jax.Array, number: int) -> jax.Array:
    """Divides the rows of each device: [n, ...] -> [number, n / number, ...]."""
    return rows.reshape(-1, number, *rows.shape[1:]).swapaxes(0, 1)


class Checkpoints:
    """The checkpoints of a training, in a folder that all processes can reach.

    Args:
      folder: of the checkpoints.
      settings: the settings that a resumed training must share.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._settings, self._folder = settings, folder.absolute()
        self._manager = self._make_manager()

    def _make_manager(self, **options: Any) -> ocp.CheckpointManager:
        how = ocp.CheckpointManagerOptions(max_to_keep=2, **options)
        return ocp.CheckpointManager(self._folder, options=how)

    def restore(self, fresh: State, *, resume: bool) -> tuple[int, State]:
        """Returns the number of done steps, and the state after them.

        Args:
          fresh: the state before the first step.
          resume: whether to continue.

        Raises:
          InputError: the folder has a training that is not to be continued, or that has
            other settings.
        """
        step = self._manager.latest_step()
        hugging_face.check_same(step or 0, f"the checkpoints in {self._folder}")
        if step is None:
            return 0, fresh
        if not resume:
            raise InputError(
                f"{self._folder} has a training of {step} steps: add --resume, or give "
                "another --output."
            )
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), fresh
        )
        found: Any = self._manager.restore(
            step, args=ocp.args.Composite(settings=ocp.args.JsonRestore())
        )
        for name, value in self._settings.items():
            if found.settings.get(name) != value:
                raise InputError(
                    f"the training in {self._folder} has {name}="
                    f"{found.settings.get(name)!r}, not {value!r}: resume it with the "
                    "same value, or give another --output."
                )
        found = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like))
        )
        return step, found.state

    def save(self, step: int, state: State, live: int) -> None:
        """Saves the state after a step, and waits until it is on disk.

        Args:
          step: number of the step.
          state: equal on all processes.
          live: number of live processes.

        Raises:
          SystemExit: a process is dead; the checkpoint is complete.
        """
        total = jax.process_count()
        if live == total:
            self._write(self._manager, step, state)
            return
        # Orbax would wait for the dead process, so process 0 writes alone.
        if jax.process_index() == 0:
            processes = ocp.options.MultiprocessingOptions(
                primary_host=0, active_processes={0}, barrier_sync_key_prefix="alone"
            )
            # The folder exists: the first manager has made it.
            alone = self._make_manager(create=False, multiprocessing_options=processes)
            self._write(alone, step, jax.tree.map(hugging_face.whole, state))
        raise SystemExit(
            f"{total - live} of {total} processes are gone: start again with --resume, "
            f"from step {step}"
        )

    def _write(self, manager: ocp.CheckpointManager, step: int, state: State) -> None:
        manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                settings=ocp.args.JsonSave(self._settings),
            ),
        )
        manager.wait_until_finished()

    def close(self) -> None:
        """Ends the threads of Orbax."""
        self._manager.close()


def initial_state(params: Any, optimizer: Any) -> State:
    """Returns the state before the first step, all of it sharded as the parameters.

    The parameters are donated: two copies of a large model may not fit.
    """
    mesh = jax.sharding.get_mesh()

    def initialise(params: Any) -> State:
        rest = jax.tree.map(jnp.zeros_like, params)
        return State(params, optimizer.init(params), rest)

    shapes = jax.eval_shape(initialise, params)
    places = jax.tree.map(lambda x: hugging_face.sharding(mesh, x.shape), shapes)
    return jax.jit(initialise, out_shardings=places, donate_argnums=0)(params)


def train(
    args: argparse.Namespace,
    rows: Rows,
    loss_fn: LossFunction,
    params: Any,
    *,
    constants: Any = None,
    settings: dict[str, Any] | None = None,
    evaluate: Callable[[int, Any], None] | None = None,
) -> Any:
    """Trains, and writes checkpoints and the plot.

    Args:
      args: the common options, see `finetune_setup.add_arguments`.
      rows: the data.
      loss_fn: loss of a part of the batch.
      params: its first argument, sharded as by `hugging_face.sharding`. Donated.
      constants: its second argument.
      settings: options of the program that a resumed training must share, beside the
        common ones.
      evaluate: gets step and parameters, before the first step, every `args.evaluate`
        steps and at the end; not while a process is dead.

    Returns:
      The trained parameters.

    Raises:
      InputError: see `Checkpoints.restore`.
    """
    optimizer = finetune_setup.make_optimizer(args)
    state = initial_state(params, optimizer)
    shared = finetune_setup.settings(args) | {"text": rows.checksum} | (settings or {})
    checkpoints = Checkpoints(args.output / "checkpoints", shared)
    first, state = checkpoints.restore(state, resume=args.resume)
    program = make_program(args, loss_fn, constants, optimizer, state)
    state = _run(args, program, rows, checkpoints, state, first, evaluate)
    checkpoints.close()
    return state.params


def _run(
    args: argparse.Namespace,
    program: Program,
    rows: Rows,
    checkpoints: Checkpoints,
    state: State,
    first: int,
    evaluate: Callable[[int, Any], None] | None,
) -> State:
    """Makes the steps after the first `first`, and returns the state after the last."""
    end = min(args.steps, args.stop_after or args.steps)
    zeros = state.rest if first == 0 else jax.tree.map(jnp.zeros_like, state.rest)
    if evaluate is not None and first == 0:
        evaluate(0, state.params)
    with Progress(
        args.steps,
        first=first,
        unit="tokens",
        units_per_step=args.batch * rows.length,
        plot=args.output / "progress.png",
    ) as progress:
        for done in range(first + 1, end + 1):
            own = rows.of_step(done - 1, batch=args.batch, seed=args.seed)
            params, opt_state, loss, stats = program.step(state, divided(own))
            state = State(params, opt_state, zeros)
            progress.step(loss, stats)
            saves = done == end or done % args.save_every == 0
            due = evaluate and (done == end or done % args.evaluate == 0)
            if not (saves or due) and done % args.resync_every:
                continue
            with progress.pause():
                live = jax.process_count()
                # In mode exact no data is late, replicas are equal bit for bit, and a
                # death is an error.
                if args.mode != "exact":
                    state, stats = program.synchronize(state)
                    live = int(stats.live_processes)
                if saves:
                    checkpoints.save(done, state, live)
                if evaluate and due and live == jax.process_count():
                    evaluate(done, state.params)
    return state
