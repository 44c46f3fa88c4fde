"""A short training of the kind given as argument, in the style of its manual.

Argument: "linen", "nnx" or "optax". Only rank 0 reads the loss, and only at the end.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec

import jax_optireduce as jo

KIND = sys.argv[1]

jo.init()
mesh = jax.make_mesh((jax.device_count(),), ("data",))
inputs = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
targets = inputs.sum(axis=1, keepdims=True)


def mapped(step):
    return jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )


def mean(gradients):
    return jo.average_gradients(gradients, "data", name="gradients")


def square(outputs):
    return jnp.mean((outputs - targets) ** 2)


if KIND == "linen":
    model = linen.Sequential([linen.Dense(128), linen.relu, linen.Dense(1)])
    state = TrainState.create(
        apply_fn=model.apply,
        params=model.init(jax.random.key(0), inputs)["params"],
        tx=optax.adam(1e-2),
    )

    def step(state):
        loss, gradients = jax.value_and_grad(
            lambda params: square(state.apply_fn({"params": params}, inputs))
        )(state.params)
        return state.apply_gradients(grads=mean(gradients)), loss

elif KIND == "nnx":
    graph, state = nnx.split(
        nnx.Sequential(
            nnx.Linear(32, 128, rngs=nnx.Rngs(0)),
            jax.nn.relu,
            nnx.Linear(128, 1, rngs=nnx.Rngs(1)),
        )
    )

    def step(state):
        loss, gradients = jax.value_and_grad(
            lambda state: square(nnx.merge(graph, state)(inputs))
        )(state)
        gradients = mean(gradients)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, state, gradients), loss

else:
    transform = optax.sgd(1e-3)
    weights = jnp.zeros((32, 1))
    state = (weights, transform.init(weights))

    def step(state):
        weights, memory = state
        loss, gradients = jax.value_and_grad(lambda w: square(inputs @ w))(weights)
        updates, memory = transform.update(mean(gradients), memory)
        return (optax.apply_updates(weights, updates), memory), loss


step = mapped(step)
for _ in range(30):
    state, loss = step(state)
if jax.process_index() == 0:
    print("loss", float(loss), flush=True)
