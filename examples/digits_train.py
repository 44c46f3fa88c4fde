"""Trains a small convolutional network on handwritten digits, in several processes.

    python -m jax_optireduce launch -n 4 examples/digits_train.py --transport exact

Every process has the whole network and a part of each batch. One of four transports
averages the gradients, the only difference between the runs:

    gloo     jax.lax.pmean, which on CPU goes through XLA's Gloo
    exact    jax_optireduce: waits for all data, retransmits lost datagrams
    bounded  jax_optireduce: ends by the deadline, late data joins a later step
    lossy    jax_optireduce: ends by the deadline, estimates lost data

The deadlines of the last two are learned, unless --deadline-s gives one. `digits.py`
runs all four and compares them, by the file that rank 0 writes into the folder of
--output, <transport>.npz: `curve` [evaluations, 2], training time in seconds and
held-out accuracy; `seconds`, of each step; `missing`, the shares of the contributions
and of the results that were not in time; `replica_distance`, the largest relative
distance of a rank's parameters to their mean; `early`, the parameters of rank 0 after
the first evaluated steps.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import images
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce

AXIS = "ranks"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)

# Chosen: by hand, the highest rate with a smooth loss on these images.
OPTIMIZER = optax.sgd(0.05, momentum=0.9)

# Images of each rank in a step.
BATCH = 32

# Steps between two evaluations, and between two lines of progress. Chosen: 30 points of
# a curve, and six lines.
EVALUATE_EVERY, SAY_EVERY = 10, 50


class DigitNet(nnx.Module):
    """Two convolutions and two dense layers: 151,306 parameters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Draws the initial parameters from `rngs`."""
        self.conv1 = nnx.Conv(1, 32, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), rngs=rngs)
        self.hidden = nnx.Linear(4 * 4 * 64, 128, rngs=rngs)
        self.logits = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images [n, 8, 8, 1] to logits [n, 10]."""
        x = nnx.relu(self.conv1(images))
        x = nnx.max_pool(nnx.relu(self.conv2(x)), (2, 2), strides=(2, 2))
        x = nnx.relu(self.hidden(x.reshape(len(x), -1)))
        return self.logits(x)


def average(gradients: Any, transport: Any) -> tuple[Any, jax.Array]:
    """Averages gradients over the ranks: the only line that this package changes.

    Returns:
      The mean gradients, and float32 [2]: the missing shares of the contributions and
      of the results.
    """
    if transport == "gloo":
        return lax.pmean(gradients, AXIS), jnp.zeros(2)
    gradients, stats = jax_optireduce.average_gradients(
        gradients, AXIS, mode=transport, return_stats=True
    )
    return gradients, jnp.stack([stats.missing_contributions, stats.missing_results])


def make_step(graph: nnx.GraphDef, transport: str) -> Any:
    """Returns the step of one rank: (state, images, labels) -> (state, report).

    The report is float32 [1, 3]: the loss on the images of this rank, and the vector of
    `average`.
    """

    def step(state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
        params, momentum = state

        def loss_fn(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params)(images)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean()

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        gradients, missing = average(gradients, transport)
        updates, momentum = OPTIMIZER.update(gradients, momentum, params)
        params = optax.apply_updates(params, updates)
        # The loss is not averaged, which saves a collective per step.
        return (params, momentum), jnp.concatenate([loss[None], missing])[None]

    return step


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Trains one network, and returns the arrays of the file, see above."""
    ranks = jax.process_count()
    mesh = jax.make_mesh((ranks,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    feed = images.Feed(images.load(None), BATCH, NamedSharding(mesh, DIVIDED))

    def initial() -> Any:
        params = nnx.state(DigitNet(nnx.Rngs(args.seed)))
        return params, OPTIMIZER.init(params)

    state = jax.jit(initial, out_shardings=NamedSharding(mesh, EVERYWHERE))()
    graph = nnx.graphdef(nnx.eval_shape(lambda: DigitNet(nnx.Rngs(args.seed))))
    # With check_vma=False `average` receives the gradients of each rank. With the
    # default, jax.shard_map sums them itself, over Gloo, unless the loss begins with
    # params = jax_optireduce.sync_in_backward(params, AXIS).
    sharded_step = jax.shard_map(
        make_step(graph, args.transport),
        mesh=mesh,
        in_specs=(EVERYWHERE, DIVIDED, DIVIDED),
        out_specs=(EVERYWHERE, DIVIDED),
        check_vma=False,
    )
    stream = feed.training(args.seed)
    batch = next(stream)
    step = jax.jit(sharded_step, donate_argnums=0).lower(state, *batch).compile()
    count = jax.jit(
        lambda params, x, y: (nnx.merge(graph, params)(x).argmax(-1) == y).sum()
    )

    def accuracy(state: Any) -> float:
        return feed.accuracy(lambda x, y: count(state[0], x, y))

    curve, seconds, reports = [(0.0, accuracy(state))], [], []
    early = None
    for number in range(1, args.steps + 1):
        start = time.perf_counter()
        state, report = jax.block_until_ready(step(state, *batch))
        seconds.append(time.perf_counter() - start)
        reports.append(np.asarray(report.addressable_data(0))[0])
        batch = next(stream)
        if number % EVALUATE_EVERY == 0 or number == args.steps:
            # It waits for all ranks.
            curve.append((sum(seconds), accuracy(state)))
            early = flat_parameters(state) if early is None else early
        said = number % SAY_EVERY == 0 or number == args.steps
        if said and jax.process_index() == 0:
            text = f"loss {reports[-1][0]:.3f}  accuracy {curve[-1][1]:.1%}"
            print(f"step {number}/{args.steps}  {text}", flush=True)
    replicas = gather(flat_parameters(state)).astype(np.float64)
    mean = replicas.mean(axis=0)
    distances = np.linalg.norm(replicas - mean, axis=1)
    return {
        "curve": np.array(curve),
        "seconds": np.array(seconds),
        "missing": gather(np.mean(reports, axis=0)).mean(axis=0)[1:],
        "replica_distance": distances.max() / np.linalg.norm(mean),
        "early": early,
    }


def gather(row: np.ndarray) -> np.ndarray:
    """Returns the rows of all ranks, [ranks, n]."""
    return multihost_utils.process_allgather(row).reshape(-1, row.size)


def flat_parameters(state: Any) -> np.ndarray:
    """Returns the parameters of this rank as a vector, float32 [n]."""
    leaves = jax.tree.leaves(state[0])
    return np.concatenate([np.ravel(leaf.addressable_data(0)) for leaf in leaves])


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    transports = ("gloo", "exact", "bounded", "lossy")
    add("--transport", choices=transports, default="exact", help="default exact")
    add("--steps", type=int, default=300, help="default 300")
    add("--seed", type=int, default=0, help="default 0")
    add("--drop", type=float, default=0.02, help="share of datagrams (default 0.02)")
    add("--deadline-s", type=float, default=0.0, help="of a call; 0: learned")
    add("--output", type=Path, help="folder; without it nothing is written")
    args = parser.parse_args()
    loses = args.transport in ("bounded", "lossy")
    faults = {"loss": args.drop, "seed": args.seed} if loses else {}
    with jax_optireduce.init(deadline_s=args.deadline_s, faults=faults):
        arrays = train(args)
    if args.output and jax.process_index() == 0:
        np.savez(args.output / f"{args.transport}.npz", **arrays)


if __name__ == "__main__":
    main()
