"""Trains a small convolutional network on handwritten digits, in several processes.

    python -m jax_optireduce launch -n 4 examples/digits_train.py --transport exact

Every process has the whole network and a part of each batch. One of four transports
averages the gradients, the only difference between the runs:

    gloo     jax.lax.pmean, which on CPU goes through XLA's Gloo
    exact    jax_optireduce: waits for all data, retransmits lost datagrams
    bounded  jax_optireduce: ends by the deadline, late data joins a later step
    lossy    jax_optireduce: ends by the deadline, estimates lost data

The deadlines of the last two are learned, unless --deadline-s gives one.

`digits.py` runs all four and compares them.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from machine_load import Load
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jax_optireduce

AXIS = "ranks"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)

# Chosen: by hand, the highest rate with a smooth loss on these images.
LEARNING_RATE = 0.05
MOMENTUM = 0.9

# Steps between two evaluations on the held-out digits. Chosen: 30 points of a curve.
EVALUATE_EVERY = 10


@dataclasses.dataclass(frozen=True)
class Config:
    """One training run; the same on every rank.

    Attributes:
      transport: "gloo", "exact", "bounded" or "lossy".
      steps: number of steps.
      batch_per_rank: images of each rank in each step.
      seed: seed of the parameters, the order of the images and the lost datagrams.
      drop: share of the dropped datagrams, in [0, 1); "bounded" and "lossy" only.
      deadline_s: deadline of a call, in seconds; 0: learned; "bounded" and "lossy"
        only.
      output: folder for the results; "" writes none.
    """

    transport: str = "exact"
    steps: int = 300
    batch_per_rank: int = 32
    seed: int = 0
    drop: float = 0.02
    deadline_s: float = 0.0
    output: str = ""


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
      The mean gradients, and float32 [3]: the missing shares of the contributions and
      of the results, and the deadline in seconds, 0 without one.
    """
    if transport == "gloo":
        return lax.pmean(gradients, AXIS), jnp.zeros(3)
    gradients, stats = jax_optireduce.average_gradients(
        gradients, AXIS, mode=transport, return_stats=True
    )
    missing = (stats.missing_contributions, stats.missing_results)
    return gradients, jnp.stack([*missing, stats.deadline_s])


def make_step(
    graph: nnx.GraphDef, optimizer: optax.GradientTransformation, transport: str
) -> Any:
    """Returns the step of one rank: (state, images, labels) -> (state, report).

    The report is float32 [1, 4]: the loss on the images of this rank, and the vector of
    `average`.
    """

    def step(state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
        params, momentum = state

        def loss_fn(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params)(images)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean()

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        gradients, about_call = average(gradients, transport)
        updates, momentum = optimizer.update(gradients, momentum, params)
        params = optax.apply_updates(params, updates)
        # The loss is not averaged, which saves a collective per step.
        return (params, momentum), jnp.concatenate([loss[None], about_call])[None]

    return step


def load(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns images [n, 8, 8, 1] in [0, 1] and labels [n]: for training, held out."""
    pixels, digits = map(np.asarray, load_digits(return_X_y=True))
    images = (pixels / pixels.max()).astype(np.float32).reshape(-1, 8, 8, 1)
    images, held_out_images, labels, held_out_labels = map(
        np.asarray,
        train_test_split(
            images,
            digits.astype(np.int32),
            test_size=0.25,
            stratify=digits,
            random_state=seed,
        ),
    )
    return images, labels, held_out_images, held_out_labels


def batches(
    images: np.ndarray, labels: np.ndarray, config: Config, mesh: Mesh
) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Yields batches without end, as global arrays; each rank makes its part.

    All ranks draw the same permutation of the images for each epoch.
    """
    sharding = NamedSharding(mesh, DIVIDED)
    per_rank, ranks = config.batch_per_rank, jax.process_count()
    generator = np.random.default_rng(config.seed)
    while True:
        order = generator.permutation(len(images))
        for start in range(0, len(order) - per_rank * ranks + 1, per_rank * ranks):
            mine = order[start + per_rank * jax.process_index() :][:per_rank]
            yield (
                jax.make_array_from_process_local_data(sharding, images[mine]),
                jax.make_array_from_process_local_data(sharding, labels[mine]),
            )


def initialise(
    optimizer: optax.GradientTransformation, config: Config, mesh: Mesh
) -> tuple[nnx.GraphDef, Any]:
    """Returns the network without its parameters, and (parameters, momentum).

    Parameters and momentum are global arrays, replicated on every rank.
    """

    def draw() -> Any:
        params = nnx.state(DigitNet(nnx.Rngs(config.seed)))
        return params, optimizer.init(params)

    # A trace needs one compilation, instead of one for each operation.
    graph = nnx.graphdef(nnx.eval_shape(lambda: DigitNet(nnx.Rngs(config.seed))))
    return graph, jax.jit(draw, out_shardings=NamedSharding(mesh, EVERYWHERE))()


def train(config: Config) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Trains one network.

    Returns:
      The figures of the run, for JSON, and this rank's parameters, float32 [n], at the
      first evaluation ("early") and at the end ("final").
    """
    ranks = jax.process_count()
    mesh = jax.make_mesh((ranks,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    images, labels, held_out_images, held_out_labels = load(config.seed)
    optimizer = optax.sgd(LEARNING_RATE, MOMENTUM)
    graph, state = initialise(optimizer, config, mesh)
    # With check_vma=False `average` receives the gradients of each rank. With the
    # default, jax.shard_map sums them itself, over Gloo, unless the loss begins with
    # params = jax_optireduce.sync_in_backward(params, AXIS).
    sharded_step = jax.shard_map(
        make_step(graph, optimizer, config.transport),
        mesh=mesh,
        in_specs=(EVERYWHERE, DIVIDED, DIVIDED),
        out_specs=(EVERYWHERE, DIVIDED),
        check_vma=False,
    )
    stream = batches(images, labels, config, mesh)
    batch = next(stream)
    step = jax.jit(sharded_step, donate_argnums=0).lower(state, *batch).compile()
    predict = jax.jit(lambda params, x: nnx.merge(graph, params)(x).argmax(-1))

    def evaluate(state: Any) -> np.ndarray:
        predicted = predict(of_this_rank(state[0]), held_out_images)
        right = np.asarray(predicted) == held_out_labels
        return gather(np.mean(right, keepdims=True)).ravel()

    accuracy_by_rank = evaluate(state)
    curve = [(0.0, float(accuracy_by_rank.mean()))]
    seconds, reports, snapshots = [], [], []
    wait_for_all("start")
    others = Load()
    for number in range(1, config.steps + 1):
        start = time.perf_counter()
        state, report = jax.block_until_ready(step(state, *batch))
        seconds.append(time.perf_counter() - start)
        reports.append(of_this_rank(report)[0])
        batch = next(stream)
        if number % EVALUATE_EVERY == 0 or number == config.steps:
            accuracy_by_rank = evaluate(state)
            curve.append((sum(seconds), float(accuracy_by_rank.mean())))
            snapshots.append(flat_parameters(state))
            say(number, config.steps, float(reports[-1][0]), *curve[-1])
            # A late end of the evaluation would delay the next step.
            wait_for_all(f"step {number}")
    figures = {
        "transport": config.transport,
        "curve": curve,
        "early_step": min(EVALUATE_EVERY, config.steps),
        "accuracy_by_rank": accuracy_by_rank.tolist(),
        "taken_by_others": others.since_start(),
    }
    figures |= across_ranks(snapshots[-1], seconds, reports)
    return figures, {"early": snapshots[0], "final": snapshots[-1]}


def across_ranks(
    own: np.ndarray, seconds: list[float], reports: list[jax.Array]
) -> dict[str, Any]:
    """Returns the figures that compare the ranks.

    Args:
      own: parameters of this rank, float32 [n].
      seconds: time of each step on this rank.
      reports: report of each step, see `make_step`.
    """
    replicas = gather(own)
    mean_replica = replicas.astype(np.float64).mean(axis=0)
    distances = np.linalg.norm(replicas - mean_replica, axis=1)
    missing = gather(np.mean(reports, axis=0)).mean(axis=0)
    return {
        "seconds": sum(seconds),
        "step_seconds_p50": float(np.percentile(seconds, 50)),
        "step_seconds_p99": float(np.percentile(seconds, 99)),
        "missing_contributions": float(missing[1]),
        "missing_results": float(missing[2]),
        # Of rank 0, and of the last step: a learned deadline changes little by then.
        "deadline_s": float(reports[-1][3]),
        "replica_distance": float(distances.max() / np.linalg.norm(mean_replica)),
        "parameters": int(own.size),
    }


def gather(row: np.ndarray) -> np.ndarray:
    """Returns the rows of all ranks, [ranks, n]."""
    return multihost_utils.process_allgather(row).reshape(-1, row.size)


def flat_parameters(state: Any) -> np.ndarray:
    """Returns the parameters of this rank as a vector, float32 [n]."""
    leaves = jax.tree.leaves(of_this_rank(state[0]))
    return np.concatenate([np.asarray(leaf).ravel() for leaf in leaves])


def of_this_rank(tree: Any) -> Any:
    """Returns the local part of global arrays."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def wait_for_all(where: str) -> None:
    """Waits for all ranks; reported times exclude the wait."""
    multihost_utils.sync_global_devices(where)


def say(step: int, steps: int, loss: float, seconds: float, accuracy: float) -> None:
    """Prints one line of progress, on rank 0: the accuracy is the mean of all ranks."""
    if jax.process_index() == 0:
        print(
            f"step {step}/{steps}  loss {loss:.4f}  accuracy {accuracy:.6f}  "
            f"{seconds:.1f} s",
            flush=True,
        )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in dataclasses.fields(Config):
        parser.add_argument(
            "--" + field.name.replace("_", "-"), type=field.type, default=field.default
        )
    config = Config(**vars(parser.parse_args()))
    loses = config.transport in ("bounded", "lossy")
    faults = {"loss": config.drop, "seed": config.seed} if loses else {}
    advanced = jax_optireduce.Advanced(faults=faults)
    with jax_optireduce.init(deadline_s=config.deadline_s, advanced=advanced):
        figures, params = train(config)
    if config.output and jax.process_index() == 0:
        folder = Path(config.output)
        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = params
        np.savez(folder / f"{config.transport}.npz", **arrays)
        (folder / f"{config.transport}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
