"""Trains on machines that come and go: a killed process takes its place again.

    python -m jax_optireduce launch -n 4 --restart 8 examples/preemptible.py
    kill -9 <one of the processes>

The program has four parts that others lack: it compiles before `join`, its data is a
function of step and rank, it counts skipped steps, and `admit` ends each step. Every
call of the step is "bounded", so the others do not wait for a process that is away.

With `--checkpoints FOLDER` it also survives the loss of most processes at once. All
hosts share the folder. If all processes are started again, they continue from its
newest checkpoint.
"""

import argparse
import logging
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce

AXIS = "ranks"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)

# Entries of an input, outputs, and inputs of each rank in a step.
FEATURES, CLASSES, BATCH = 64, 10, 64

RATE = 0.1
OPTIMIZER = optax.sgd(RATE, momentum=0.9)

# The network learns these weights.
TEACHER = np.random.default_rng(7).standard_normal((FEATURES, CLASSES))


class Network(nnx.Module):
    """Two dense layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Draws the initial parameters from `rngs`."""
        self.hidden = nnx.Linear(FEATURES, 256, rngs=rngs)
        self.out = nnx.Linear(256, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits."""
        return self.out(nnx.relu(self.hidden(x)))


def batch(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs of a rank in a step, and their classes."""
    random = np.random.default_rng((step, rank))
    x = random.standard_normal((BATCH, FEATURES))
    return x.astype(np.float32), np.argmax(x @ TEACHER, 1).astype(np.int32)


def settled(state: Any) -> Any:
    """Returns the state with all late gradients applied, equal on all ranks."""
    params, optimizer = state
    late = jax_optireduce.drain(params, AXIS, name="gradients")
    params = jax.tree.map(lambda p, g: p - RATE * g, params, late)
    return jax_optireduce.resync((params, optimizer), AXIS)


def make_step(graph: Any) -> Any:
    """Returns the step of a network: state and batch to state, loss, skipped steps."""

    def step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        def loss_fn(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        params, optimizer = state
        loss, gradients = jax.value_and_grad(loss_fn)(params)
        mean, stats = jax_optireduce.average_gradients(
            gradients, AXIS, name="gradients", return_stats=True
        )
        loss = jax_optireduce.pmean(loss, AXIS, mode="bounded", name="loss")
        updates, optimizer = OPTIMIZER.update(mean, optimizer, params)
        params = optax.apply_updates(params, updates)
        return (params, optimizer), loss, stats.skipped

    return step


def placed(tree: Any, sharding: NamedSharding) -> Any:
    """Returns global arrays, of which this process gives its part."""
    return jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), tree
    )


def compiled(function: Any, *operands: Any) -> Any:
    """Returns the program of a function of each rank, for operands like these."""
    sharding = jax.tree.leaves(operands)[0].sharding
    specs = jax.tree.map(lambda x: x.sharding.spec, operands)
    mapped = jax.shard_map(
        function,
        mesh=sharding.mesh,
        in_specs=specs,
        out_specs=EVERYWHERE,
        check_vma=False,
    )
    return jax.jit(mapped).lower(*operands).compile()


def make_checkpointer() -> ocp.StandardCheckpointer:
    """Returns a checkpointer with which each process can save, and waits for no other.

    Its arrays are replicated over the processes.
    """
    rank = jax.process_index()
    whole = ocp.type_handlers.ArrayHandler(
        primary_host=rank, replica_id=None, use_replica_parallel=False
    )
    ocp.type_handlers.register_type_handler(jax.Array, whole, override=True)
    alone = ocp.options.MultiprocessingOptions(
        primary_host=rank, active_processes={rank}
    )
    return ocp.StandardCheckpointer(multiprocessing_options=alone)


def newest(folder: Path) -> int:
    """Returns the step of the newest checkpoint, or 0."""
    # An unfinished one has a longer name.
    steps = (int(path.name) for path in folder.glob("*") if path.name.isdigit())
    return max(steps, default=0)


def main() -> None:
    """Trains, and prints the loss."""
    parser = argparse.ArgumentParser(description="Trains while processes die.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-s", type=float, default=0.02, help="least time of one")
    parser.add_argument("--checkpoints", type=Path, help="folder")
    parser.add_argument("--every", type=int, default=50, help="steps to a checkpoint")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s", force=True)
    logging.getLogger("jax_optireduce").setLevel(logging.INFO)

    jax_optireduce.init()
    rank, ranks = jax.process_index(), jax.process_count()
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,))
    everywhere, divided = NamedSharding(mesh, EVERYWHERE), NamedSharding(mesh, DIVIDED)
    graph, params = nnx.split(Network(nnx.Rngs(0)))
    state = placed((params, OPTIMIZER.init(params)), everywhere)
    data = placed(batch(0, rank), divided)

    train = compiled(make_step(graph), state, *data)
    settle = compiled(settled, state)

    checkpointer = make_checkpointer()
    folder = arguments.checkpoints and arguments.checkpoints.absolute()
    first = newest(folder) if folder else 0
    joined, step = jax_optireduce.join(state, first)
    if joined is state and first:
        # The job begins, and not this process alone: `join` gave no other state.
        joined = checkpointer.restore(folder / str(first), state)
        print(f"continues from step {first}")
    state = joined

    while step < arguments.steps:
        time.sleep(arguments.step_s)
        state, loss, skipped = train(state, *placed(batch(step, rank), divided))
        # After a pause the rank has skipped steps: it counts like the others.
        step += 1 + int(skipped.addressable_data(0))
        if step % arguments.every == 0:
            print(f"step {step}: loss {float(loss.addressable_data(0)):.3f}")
            if folder:
                state = settle(state)
                # The ranks save in turn. Without a rank its turn passes.
                if step // arguments.every % ranks == rank:
                    checkpointer.save(folder / str(step), state)
        state = jax_optireduce.admit(state, step, settle)
    settle(state)
    checkpointer.wait_until_finished()
    jax_optireduce.shutdown()


if __name__ == "__main__":
    main()
