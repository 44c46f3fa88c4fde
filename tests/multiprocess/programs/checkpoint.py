"""Trains, saves with Orbax, restores in a new process and continues training.

Arguments: mode, folder of the checkpoint ("" for none), first and last step. Begins
with the checkpoint if there is one, and otherwise writes one. Prints "bits <digest>" of
the parameters and the momentum, and "calls <n>" of the state of the Optax link.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce as jo

MODE, FOLDER = sys.argv[1:3]
FIRST, LAST = map(int, sys.argv[3:])
RATE = 0.05

link = jo.optax_average_gradients("dp", mode=MODE, name="gradients")
optimizer = optax.chain(link, optax.sgd(RATE, momentum=0.9))


def train(state: Any, x: Any) -> Any:
    """One step of one rank, with its part `x` of the data."""
    params, inner = state

    def loss(w: Any) -> Any:
        return ((jnp.tanh(x @ w["hidden"]) @ w["out"] - x.sum()) ** 2).mean()

    updates, inner = optimizer.update(jax.grad(loss)(params), inner, params)
    return optax.apply_updates(params, updates), inner


def synchronize(state: Any) -> Any:
    """Adds the data in flight, and makes the replicas equal."""
    params, inner = state
    rest = jo.drain(params, "dp", name="gradients", mode=MODE)
    params = jax.tree.map(lambda p, g: p - RATE * g, params, rest)
    return jo.resync((params, inner), "dp")


def main() -> None:
    """Runs the steps given by the arguments."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    everywhere = NamedSharding(mesh, P())

    def initial() -> Any:
        keys = jax.random.split(jax.random.key(0), 2)
        params = {
            "hidden": jax.random.normal(keys[0], (6, 8)) / 3,
            "out": jax.random.normal(keys[1], (8,)) / 3,
        }
        return params, optimizer.init(params)

    state = jax.jit(initial, out_shardings=everywhere)()
    path = Path(FOLDER) / "state"
    checkpointer = ocp.StandardCheckpointer()
    restored = bool(FOLDER) and path.exists()
    if restored:
        # `state` gives shapes, dtypes and placement.
        state = checkpointer.restore(path, state)
    whole = {"mesh": mesh, "out_specs": P(), "check_vma": False}
    step = jax.jit(jax.shard_map(train, in_specs=(P(), P("dp")), **whole))
    for number in range(FIRST, LAST):
        rows = np.random.default_rng(number).normal(size=(jax.device_count(), 6))
        state = step(state, meshes.spread(mesh, rows.astype(np.float32)))
    if FOLDER and not restored:
        state = jax.jit(jax.shard_map(synchronize, in_specs=P(), **whole))(state)
        checkpointer.save(path, state)
    checkpointer.wait_until_finished()
    params, (report, momentum) = state
    values = [leaf.addressable_data(0) for leaf in jax.tree.leaves((params, momentum))]
    print("bits", meshes.digest(*map(np.asarray, values)))
    print("calls", report.calls.addressable_data(0))


with jo.init(deadline_s=30.0):
    main()
