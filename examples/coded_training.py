r"""Gradient coding: exact gradients without waiting for late ranks.

    python -m jax_optireduce launch -n 4 examples/coded_training.py --sleep-ms 100
    python -m jax_optireduce launch -n 4 examples/coded_training.py --sleep-ms 100 \
      --late 0

The last rank sleeps before each step. In the first program each rank computes the
gradient of two quarters of each batch, and the mean over the batch is exact without the
last rank, so that the others do not wait for it. In the second one each rank computes
its quarter, and all wait for the last one. Both take the same steps. The idea and its
limits: docs/coding.md.
"""

import argparse
import time
from typing import Any

import images
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce
from jax_optireduce import coding

OPTIMIZER = optax.sgd(0.1, momentum=0.9)

EVERYWHERE, BY_RANK = P(), P("data")


def first_parameters(seed: int) -> Any:
    """Returns the parameters of a network with one hidden layer."""
    keys = jax.random.split(jax.random.key(seed), 2)
    hidden = jax.random.normal(keys[0], (64, 128)) / 8
    out = jax.random.normal(keys[1], (128, images.CLASSES)) / 12
    return {"hidden": hidden, "bias": jnp.zeros(128), "out": out}


def predict(params: Any, x: jax.Array) -> jax.Array:
    """Returns the logits, float32 [n, classes]."""
    return jax.nn.relu(x @ params["hidden"] + params["bias"]) @ params["out"]


def make_step(mesh: Mesh, plan: coding.Plan) -> jax.stages.Wrapped:
    """Returns (state, x, labels, weights) to (state, whether the gradient is exact)."""

    def step(
        state: coding.State, x: jax.Array, labels: jax.Array, weights: jax.Array
    ) -> tuple[coding.State, jax.Array]:
        def gradient(carried: Any) -> Any:
            params, _ = carried

            def loss(params: Any) -> jax.Array:
                logits = predict(params, x)
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
                return weights @ losses

            return jax.grad(loss)(params)

        mean, state, report = coding.combine(gradient, state, "data", plan)
        params, inner = state.carried
        updates, inner = OPTIMIZER.update(mean, inner, params)
        carried = optax.apply_updates(params, updates), inner
        return state.replace(carried), report.exact[None]

    return jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(EVERYWHERE, BY_RANK, BY_RANK, BY_RANK),
            out_specs=(EVERYWHERE, BY_RANK),
            check_vma=False,
        ),
        donate_argnums=0,
    )


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--late", type=int, default=1, help="of each cluster (1)")
    parser.add_argument("--code", default="repetition", help="or cyclic")
    parser.add_argument("--steps", type=int, default=100, help="default 100")
    parser.add_argument("--batch", type=int, default=192, help="of all ranks (192)")
    parser.add_argument("--sleep-ms", type=float, default=0, help="of the last rank")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    """Trains and evaluates."""
    rank, ranks = jax.process_index(), jax.process_count()
    mesh = jax.make_mesh((ranks,), ("data",))
    data = images.load(None)
    x = data.training.images.reshape(len(data.training), -1).astype(np.float32) / 16
    plan = coding.plan(
        ranks,
        late=args.late,
        dataset=len(x),
        batch=args.batch,
        code=args.code,
        seed=args.seed,
    )
    over = NamedSharding(mesh, BY_RANK)

    def of_rank(*rows: np.ndarray) -> list[jax.Array]:
        return [jax.make_array_from_process_local_data(over, part) for part in rows]

    def initial() -> coding.State:
        params = first_parameters(args.seed)
        return coding.start((params, OPTIMIZER.init(params)))

    state = jax.jit(initial, out_shardings=NamedSharding(mesh, EVERYWHERE))()
    weights = plan.weights(rank)

    def batch_of(number: int) -> list[jax.Array]:
        chosen = plan.examples(rank, number)
        return of_rank(x[chosen], data.training.labels[chosen], weights)

    step = make_step(mesh, plan).lower(state, *batch_of(0)).compile()
    # A rank that compiles for longer than the others would be late.
    multihost_utils.sync_global_devices("all ranks have compiled")
    inexact, began = 0, time.perf_counter()
    for number in range(args.steps):
        if rank == ranks - 1:
            time.sleep(args.sleep_ms / 1000)
        state, exact = jax.block_until_ready(step(state, *batch_of(number)))
        inexact += not exact.addressable_data(0)[0]
    ms = 1000 * (time.perf_counter() - began) / args.steps
    multihost_utils.sync_global_devices("the last rank has ended its steps")
    params = jax.tree.map(lambda leaf: leaf.addressable_data(0), state.carried[0])
    held_out = jnp.asarray(data.held_out.images.reshape(len(data.held_out), -1) / 16)
    right = np.asarray(predict(params, held_out)).argmax(1) == data.held_out.labels
    print(
        f"{args.steps} steps of {ms:.1f} ms, {inexact} inexact; "
        f"held-out accuracy {right.mean():.4f}",
        flush=True,
    )


def main() -> None:
    """Runs the command line."""
    args = parse_arguments()
    with jax_optireduce.init():
        train(args)


if __name__ == "__main__":
    main()
