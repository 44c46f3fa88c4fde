"""Trains on machines that come and go: a killed process takes its place again.

    python -m jax_optireduce launch -n 4 --restart 8 examples/preemptible.py
    kill -9 <one of the processes>

The program has three parts that others lack: it compiles before `join`, its data is a
function of step and rank, and `admit` ends each step. Every call of the step is
"bounded", so the others do not wait for a process that is away.
"""

import argparse
import logging
import time
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce

AXIS = "ranks"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)

# Entries of an input, outputs, and inputs of each rank in a step.
FEATURES, CLASSES, BATCH = 64, 10, 64

OPTIMIZER = optax.adam(1e-3)

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


def update(state: Any, gradients: Any) -> Any:
    """Returns parameters and optimizer state after a step."""
    updates, optimizer = OPTIMIZER.update(gradients, state[1], state[0])
    return optax.apply_updates(state[0], updates), optimizer


def drained(state: Any) -> Any:
    """Returns the state with all late gradients applied."""
    return update(state, jax_optireduce.drain(state[0], AXIS, name="gradients"))


def make_step(graph: Any) -> Any:
    """Returns the step of a network: state and batch to state and loss."""

    def step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        def loss_fn(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        loss, gradients = jax.value_and_grad(loss_fn)(state[0])
        mean = jax_optireduce.average_gradients(gradients, AXIS, name="gradients")
        loss = jax_optireduce.pmean(loss, AXIS, mode="bounded", name="loss")
        return update(state, mean), loss

    return step


def placed(tree: Any, sharding: NamedSharding) -> Any:
    """Returns global arrays, of which this process gives its part."""
    return jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), tree
    )


def main() -> None:
    """Trains, and prints the loss."""
    parser = argparse.ArgumentParser(description="Trains while processes die.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-s", type=float, default=0.02, help="least time of one")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    jax_optireduce.init()
    rank = jax.process_index()
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,))
    divided = NamedSharding(mesh, DIVIDED)
    graph, params = nnx.split(Network(nnx.Rngs(0)))
    state = placed((params, OPTIMIZER.init(params)), NamedSharding(mesh, EVERYWHERE))
    data = placed(batch(0, rank), divided)

    def compiled(function: Any, *operands: Any, specs: Any, result: Any) -> Any:
        mapped = jax.shard_map(
            function, mesh=mesh, in_specs=specs, out_specs=result, check_vma=False
        )
        return jax.jit(mapped).lower(*operands).compile()

    specs = (EVERYWHERE, DIVIDED, DIVIDED)
    train = compiled(make_step(graph), state, *data, specs=specs, result=EVERYWHERE)
    drain = compiled(drained, state, specs=(EVERYWHERE,), result=EVERYWHERE)

    state, step = jax_optireduce.join(state, step=0)
    while step < arguments.steps:
        time.sleep(arguments.step_s)
        state, loss = train(state, *placed(batch(step, rank), divided))
        step += 1
        if step % 50 == 0:
            print(f"step {step}: loss {float(loss.addressable_data(0)):.3f}")
        state = jax_optireduce.admit(state, step, drain)
    drain(state)
    jax_optireduce.shutdown()


if __name__ == "__main__":
    main()
