"""Replicas: processes that JAX does not connect, and whose number changes.

    python -m jax_optireduce launch -n 3 --replicas --restart 9 examples/replicas.py

One more replica, from another shell, with the port of the coordinator:

    python -m jax_optireduce coordinator --replicas --port 1234
    export JAX_OPTIREDUCE_COORDINATOR=127.0.0.1:1234
    JAX_OPTIREDUCE_REPLICA=another python examples/replicas.py

Each replica has devices and a mesh of its own. The program is compiled once, for any
number of replicas. A replica that was killed, or one that is new, gets the state of the
others.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import jax_optireduce
from jax_optireduce import REPLICAS

# Entries of an input, outputs, and inputs of each replica in a step.
FEATURES, CLASSES, BATCH = 64, 10, 64

OPTIMIZER = optax.sgd(0.1, momentum=0.9)

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


def batch(step: int, place: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs of a replica in a step, and their classes."""
    random = np.random.default_rng((step, place))
    x = random.standard_normal((BATCH, FEATURES))
    return x.astype(np.float32), np.argmax(x @ TEACHER, 1).astype(np.int32)


def make_step(graph: Any) -> Any:
    """Returns the step of a network: state and batch to state, loss, live replicas."""

    def step_fn(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        def loss_fn(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        params, optimizer = state
        loss, gradients = jax.value_and_grad(loss_fn)(params)
        mean, stats = jax_optireduce.average_gradients(
            gradients, REPLICAS, mode="exact", name="gradients", return_stats=True
        )
        loss = jax_optireduce.pmean(loss, REPLICAS, name="loss")
        updates, optimizer = OPTIMIZER.update(mean, optimizer, params)
        params = optax.apply_updates(params, updates)
        return (params, optimizer), loss, stats.live_processes

    return step_fn


def main() -> None:
    """Trains, and prints the loss and the number of replicas."""
    parser = argparse.ArgumentParser(description="Trains while replicas come and go.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-s", type=float, default=0.02, help="least time of one")
    arguments = parser.parse_args()

    session = jax_optireduce.init()
    graph, params = nnx.split(Network(nnx.Rngs(0)))
    state = params, OPTIMIZER.init(params)
    place = session.place
    train = jax.jit(make_step(graph)).lower(state, *batch(0, place)).compile()

    state, step = jax_optireduce.join(state)
    while step < arguments.steps:
        try:
            new, loss, live = jax.block_until_ready(train(state, *batch(step, place)))
        except jax.errors.JaxRuntimeError as error:
            print(f"step {step}: {str(error).splitlines()[0]}")
            state, step = jax_optireduce.join(state, step)
            continue
        state, step = new, step + 1
        if step % 50 == 0:
            print(f"step {step}: loss {float(loss):.3f}, {int(live)} replicas")
        state = jax_optireduce.admit(state, step)
        time.sleep(arguments.step_s)
    jax_optireduce.shutdown()


if __name__ == "__main__":
    main()
