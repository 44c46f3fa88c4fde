"""Fine-tunes GPT-2 on a text, data-parallel over the processes.

    python -m jax_optireduce launch -n 4 examples/finetune_gpt2.py \
        --checkpoint gpt2/ --text book.txt

Starts from a checkpoint of Hugging Face (config.json, model.safetensors and the files
of the tokenizer) and writes another one, with the plot of the training, into --output.
Without --checkpoint and --text it makes a tiny, untrained model and a small text there,
in the same formats. AdamW with warm-up, cosine decay and a clipped gradient.

The gradients cross the network in one call per update (`average_gradients`), also with
--accumulate. With JAX_OPTIREDUCE_BACKEND=xla the same program runs on JAX's own
collectives. The devices of a process share the parameters (axis "fsdp").

--resume continues after the newest Orbax checkpoint in --output: in mode `exact` with
the bits of a training that was never interrupted. docs/finetuning.md explains the use
on a cluster.
"""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gpt2_model
import gpt2_setup
import gpt2_text
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx
from gpt2_model import InputError
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from training_progress import Progress

import jax_optireduce

# The name of the gradients' call, which the drain repeats.
NAME = "gradients"


class State(NamedTuple):
    """The state of a training; a checkpoint has exactly this and the step.

    Attributes:
      params: parameters of the model.
      optimizer: state of the optimizer.
      rest: late gradients that a drain has returned. They join the gradients of the
        next step: AdamW would turn them alone into a whole update.
    """

    params: Any
    optimizer: Any
    rest: Any


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of a training.

    Attributes:
      step: (*state, tokens) -> (params, optimizer, loss, statistics).
      synchronize: state -> state with equal replicas, and no data in flight.
    """

    step: Callable[..., Any]
    synchronize: Callable[[State], State]


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    gpt2_setup.add_arguments(parser)
    add = parser.add_argument
    add("--output", type=Path, default=Path("finetuned"), help="default finetuned")
    add("--accumulate", type=int, default=1, help="parts of a batch (default 1)")
    add("--save-every", type=int, default=100, help="steps (default 100)")
    add("--stop-after", type=int, help="save and end after this step; --resume goes on")
    add("--resume", action="store_true", help="continue the training in --output")
    return parser.parse_args()


def make_program(
    graph: nnx.GraphDef, optimizer: Any, state: State, mode: str, accumulate: int
) -> Program:
    """Returns the functions of a training.

    Args:
      graph: the model without its parameters.
      optimizer: an Optax transformation.
      state: for its shardings.
      mode: of the gradients.
      accumulate: parts of a batch, whose gradients are added up before the call.
    """
    specs = jax.tree.map(lambda x: x.sharding, state)
    # The loss rides along with the gradients: no call of its own.
    call: Any = {"name": NAME, "mode": mode, "specs": (P(), specs.params)}

    def mean_gradients(params: Any, tokens: jax.Array) -> Any:
        def add(total: Any, part: jax.Array) -> tuple[Any, None]:
            def loss_fn(params: Any) -> jax.Array:
                return gpt2_model.next_token_loss(nnx.merge(graph, params), part)

            one = jax.value_and_grad(loss_fn)(params)
            return jax.tree.map(jnp.add, total, one), None

        # Each device divides its own sequences into parts.
        parts = tokens.reshape(-1, accumulate, tokens.shape[-1]).swapaxes(0, 1)
        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        total, _ = lax.scan(add, zeros, parts)
        mean = jax.tree.map(lambda x: x / accumulate, total)
        return jax_optireduce.average_gradients(mean, "data", **call, return_stats=True)

    average = jax_optireduce.over_slow_axis(mean_gradients, "data", batch_argnums=1)

    def step(params: Any, opt_state: Any, rest: Any, tokens: jax.Array) -> Any:
        (loss, gradients), stats = average(params, tokens)
        gradients = jax.tree.map(jnp.add, gradients, rest)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss, stats

    def synchronize(state: State) -> State:
        loss = jnp.zeros(())
        _, rest = jax_optireduce.drain((loss, state.params), "data", **call)
        state = state._replace(rest=rest)
        return jax_optireduce.resync(state, "data", specs=specs)

    of_ranks = jax_optireduce.over_slow_axis(synchronize, "data")
    return Program(jax.jit(step, donate_argnums=(0, 1)), jax.jit(of_ranks))


class Checkpoints:
    """The checkpoints of a training, in a folder that all processes can reach.

    Args:
      folder: of the checkpoints.
      settings: the settings that a resumed training must share.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._settings, self._folder = settings, folder.absolute()
        self._manager = ocp.CheckpointManager(
            self._folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)
        )

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
        gpt2_model.check_same(step or 0, f"the checkpoints in {self._folder}")
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

    def save(self, step: int, state: State) -> None:
        """Saves the state after a step, and waits until it is on disk."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                settings=ocp.args.JsonSave(self._settings),
            ),
        )
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Ends the threads of Orbax."""
        self._manager.close()


def initial_state(params: Any, optimizer: Any, mesh: Mesh) -> State:
    """Returns the state before the first step, all of it sharded as the parameters."""

    def initialise(params: Any) -> State:
        rest = jax.tree.map(jnp.zeros_like, params)
        return State(params, optimizer.init(params), rest)

    shapes = jax.eval_shape(initialise, params)
    places = jax.tree.map(lambda x: gpt2_model.sharding(mesh, x.shape), shapes)
    return jax.jit(initialise, out_shardings=places)(params)


def train(args: argparse.Namespace, mode: str) -> None:
    """Trains, and writes checkpoints, the model and the plot."""
    mesh = gpt2_setup.make_mesh()
    folder, text, rate = gpt2_setup.inputs(args)
    blocks = gpt2_setup.read_text(args, folder, text, args.accumulate)
    graph, params = gpt2_model.load(folder, mesh)
    optimizer = gpt2_setup.make_optimizer(args, rate)
    state = initial_state(params, optimizer, mesh)
    del params
    names = ("steps", "batch", "length", "warmup", "weight_decay", "clip", "seed")
    settings = {name: getattr(args, name) for name in names}
    settings |= {"rate": rate, "text": blocks.checksum}
    checkpoints = Checkpoints(args.output / "checkpoints", settings)
    first, state = checkpoints.restore(state, resume=args.resume)
    program = make_program(graph, optimizer, state, mode, args.accumulate)
    state = run(args, program, blocks, checkpoints, state, first, mode)
    if jax.process_index() == 0:
        gpt2_model.save(args.output / "model", state.params, folder)
        print(f"model: {args.output / 'model'}", flush=True)
    checkpoints.close()


def run(
    args: argparse.Namespace,
    program: Program,
    blocks: gpt2_text.Blocks,
    checkpoints: Checkpoints,
    state: State,
    first: int,
    mode: str,
) -> State:
    """Makes the steps after the first `first`, and returns the state after the last."""
    end = min(args.steps, args.stop_after or args.steps)
    rows = NamedSharding(jax.sharding.get_mesh(), P(("data", "fsdp")))
    zeros = state.rest if first == 0 else jax.tree.map(jnp.zeros_like, state.rest)
    with Progress(
        args.steps,
        first=first,
        unit="tokens",
        units_per_step=args.batch * blocks.length,
        plot=args.output / "progress.png",
    ) as progress:
        for done in range(first + 1, end + 1):
            own = blocks.rows(done - 1, batch=args.batch, seed=args.seed)
            tokens = jax.make_array_from_callback(own.shape, rows, own.__getitem__)
            params, opt_state, loss, stats = program.step(*state, tokens)
            state = State(params, opt_state, zeros)
            progress.step(loss, stats)
            saves = done == end or done % args.save_every == 0
            if not saves and done % args.resync_every:
                continue
            with progress.pause():
                # In mode exact no data is late, and replicas are equal bit for bit.
                if mode != "exact":
                    state = program.synchronize(state)
                if saves:
                    checkpoints.save(done, state)
    return state


def main() -> None:
    """Runs the command line."""
    args = parse_arguments()
    with jax_optireduce.init(**gpt2_setup.mode(args)) as communicator:
        try:
            train(args, communicator.options.mode or "bounded")
        except InputError as error:
            raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
