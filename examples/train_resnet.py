"""Trains a residual network on images: CIFAR-10, or small digits without an archive.

    python -m jax_optireduce launch -n 4 examples/train_resnet.py
    python -m jax_optireduce launch -n 4 examples/train_resnet.py \
        --data cifar-10-python.tar.gz --blocks 3 --width 16 --epochs 100

The second command trains the ResNet-20 of K. He et al., *Deep Residual Learning for
Image Recognition*, 2015, section 4.2. SLURM and Kubernetes run the same program:
docs/vision.md. JAX_OPTIREDUCE_BACKEND=xla runs it on JAX's collectives.

**Batch norm.** Each process normalises by the statistics of its own part of a batch, as
usual in data parallelism. Evaluation uses their running means. An update of these
means is averaged over the processes like a gradient, in the call of the loss: the means
are linear in it, so a part that misses its deadline may join a later step. Averages of
the means themselves would not allow that: a late part would count twice or not at all.

**Before an evaluation** `settle` adds the data in flight and makes the replicas equal
(docs/checkpoints.md). Each process then evaluates its part of the held-out images.
"""

import argparse
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import images
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from training_progress import Progress

import jax_optireduce

# Source: He et al., section 4.2.
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4

# Part of a running mean that remains in a step. Chosen: a memory of ten steps, so that
# a short training can be evaluated.
STATISTICS_MEMORY = 0.9

# Share of the steps in which the rate rises to its peak. Chosen: usual for batches of a
# few hundred images.
WARM_UP = 0.05

# The slow network is between the processes. The devices of one share the parameters,
# and divide its part of a batch.
ROWS = P(("data", "devices"))


class Block(nnx.Module):
    """Two convolutions beside the identity."""

    def __init__(self, before: int, width: int, rngs: nnx.Rngs) -> None:
        self.stride = 1 if before == width else 2
        self.conv1 = convolution(before, width, self.stride, rngs)
        self.norm1 = batch_norm(width, rngs)
        self.conv2 = convolution(width, width, 1, rngs)
        self.norm2 = batch_norm(width, rngs)

    def __call__(self, x: jax.Array, *, evaluates: bool) -> jax.Array:
        """Maps [n, height, width, before] to [n, height/stride, …, width]."""
        y = nnx.relu(self.norm1(self.conv1(x), use_running_average=evaluates))
        y = self.norm2(self.conv2(y), use_running_average=evaluates)
        # Without parameters: every other pixel, and zeros for the new features.
        x = x[:, :: self.stride, :: self.stride]
        return nnx.relu(y + jnp.pad(x, ((0, 0),) * 3 + ((0, y.shape[3] - x.shape[3]),)))


class ResNet(nnx.Module):
    """Three groups of blocks, the second and third of a half and a quarter the size."""

    def __init__(self, colours: int, blocks: int, width: int, rngs: nnx.Rngs) -> None:
        widths = [width] * (blocks + 1) + [2 * width] * blocks + [4 * width] * blocks
        self.conv = convolution(colours, width, 1, rngs)
        self.norm = batch_norm(width, rngs)
        pairs = itertools.pairwise(widths)
        self.blocks = nnx.List([Block(before, after, rngs) for before, after in pairs])
        self.head = nnx.Linear(4 * width, images.CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array, *, evaluates: bool = False) -> jax.Array:
        """Maps float32 [n, height, width, colours] to logits [n, classes]."""
        x = nnx.relu(self.norm(self.conv(x), use_running_average=evaluates))
        for block in self.blocks:
            x = block(x, evaluates=evaluates)
        return self.head(x.mean((1, 2)))


def convolution(before: int, width: int, stride: int, rngs: nnx.Rngs) -> nnx.Conv:
    """Returns a convolution of 3 x 3 pixels."""
    initial = nnx.initializers.he_normal()
    settings: Any = {"strides": stride, "use_bias": False, "kernel_init": initial}
    return nnx.Conv(before, width, (3, 3), rngs=rngs, **settings)


def batch_norm(width: int, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """Returns a batch norm."""
    return nnx.BatchNorm(width, momentum=STATISTICS_MEMORY, rngs=rngs)


class State(NamedTuple):
    """State of the training; the same on all processes after `settle`.

    Attributes:
      params: parameters.
      statistics: running means and variances of the batch norms.
      optimizer: state of the optimizer.
    """

    params: Any
    statistics: Any
    optimizer: Any


class Training(NamedTuple):
    """The jitted functions of a training, and its first state.

    Attributes:
      state: the first state.
      step: (state, images, labels) to (state, loss, statistics of the call).
      settle: state to the state for an evaluation or a checkpoint.
      count_right: (state, images, labels) to the number of right predictions, int32 [].
    """

    state: State
    step: jax.stages.Wrapped
    settle: jax.stages.Wrapped
    count_right: Callable[..., jax.Array]


def make_training(
    model: Callable[[nnx.Rngs], ResNet], schedule: optax.Schedule, mesh: Mesh, seed: int
) -> Training:
    """Makes the functions of a training.

    Args:
      model: makes the network.
      schedule: step to learning rate.
      mesh: processes along "data", devices of a process along "devices".
      seed: of the first parameters.
    """
    optimizer = optax.chain(
        # The scales and shifts of the norms are vectors.
        optax.add_decayed_weights(
            WEIGHT_DECAY, lambda params: jax.tree.map(lambda p: p.ndim > 1, params)
        ),
        optax.sgd(schedule, MOMENTUM, nesterov=True),
    )
    graph = nnx.graphdef(nnx.eval_shape(lambda: model(nnx.Rngs(seed))))

    def create() -> State:
        _, params, statistics = nnx.split(
            model(nnx.Rngs(seed)), nnx.Param, nnx.BatchStat
        )
        return State(params, statistics, optimizer.init(params))

    def loss_fn(params: Any, statistics: Any, x: Any, labels: Any) -> Any:
        network = nnx.merge(graph, params, statistics, copy=True)
        losses = optax.softmax_cross_entropy_with_integer_labels(network(x), labels)
        moved = nnx.state(network, nnx.BatchStat)
        return losses.mean(), jax.tree.map(jnp.subtract, moved, statistics)

    # 1: in place of jax.value_and_grad. One call for the gradients, one for the loss
    # and the updates of the statistics.
    value_and_grad = jax_optireduce.value_and_grad(
        loss_fn,
        "data",
        has_aux=True,
        batch_argnums=(2, 3),
        mesh=mesh,
        name="gradients",
        return_stats=True,
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: State, x: jax.Array, labels: jax.Array) -> tuple[State, Any, Any]:
        params, statistics, _ = state
        results, stats = value_and_grad(params, statistics, x, labels)
        (loss, moved), gradients = results
        updates, following = optimizer.update(gradients, state.optimizer, params)
        params = optax.apply_updates(params, updates)
        # A change without any data is NaN.
        moved = jax.tree.map(jnp.nan_to_num, moved)
        statistics = jax.tree.map(jnp.add, statistics, moved)
        return State(params, statistics, following), loss, stats

    return Training(
        jax.jit(create, out_shardings=NamedSharding(mesh, P()))(),
        step,
        make_settle(schedule, mesh),
        make_count(graph, mesh),
    )


def make_settle(schedule: optax.Schedule, mesh: Mesh) -> jax.stages.Wrapped:
    """Returns the function that ends a part of a training, see `Training`."""

    def settle(state: State) -> State:
        # 2: the gradients in flight.
        rest = jax_optireduce.drain(state.params, "data", name="gradients")
        rate = schedule(optax.tree.get(state.optimizer, "count"))
        params = jax.tree.map(lambda p, g: p - rate * g, state.params, rest)
        # 3: replicas that missed different data are equal again.
        return jax_optireduce.resync(state._replace(params=params), "data")

    return jax.jit(
        jax_optireduce.over_slow_axis(settle, "data", mesh=mesh), donate_argnums=0
    )


def make_count(graph: nnx.GraphDef, mesh: Mesh) -> Callable[..., jax.Array]:
    """Returns the function that counts right predictions, see `Training`."""

    def count(state: State, x: jax.Array, labels: jax.Array) -> jax.Array:
        network = nnx.merge(graph, state.params, state.statistics)
        right = network(x, evaluates=True).argmax(-1) == labels
        # 4: of all processes, exactly.
        return jax_optireduce.psum(right.sum(), "data", mode="exact")

    regional = jax_optireduce.over_slow_axis(
        count, "data", batch_argnums=(1, 2), mesh=mesh
    )
    return jax.jit(regional)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="cifar-10-python.tar.gz; without it: digits")
    parser.add_argument("--blocks", type=int, default=1, help="of each of 3 groups (1)")
    parser.add_argument("--width", type=int, default=8, help="of the first group (8)")
    parser.add_argument("--epochs", type=int, default=12, help="default 12")
    parser.add_argument(
        "--evaluate-every", type=int, default=4, help="in epochs, and at the end (4)"
    )
    parser.add_argument("--batch", type=int, default=32, help="of a process (32)")
    parser.add_argument("--rate", type=float, default=0.1, help="peak (0.1)")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--mode", default="bounded", help="of gradients (bounded)")
    parser.add_argument("--plot", type=Path, help="path of a picture, .png")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    """Trains and evaluates."""
    mesh = jax.make_mesh(
        (jax.process_count(), jax.local_device_count()),
        ("data", "devices"),
        axis_types=(AxisType.Auto, AxisType.Auto),
    )
    data = images.load(args.data)
    feed = images.Feed(data, args.batch, NamedSharding(mesh, ROWS))
    steps = args.epochs * feed.steps_per_epoch
    warm_up = int(WARM_UP * steps)
    schedule = optax.warmup_cosine_decay_schedule(0.0, args.rate, warm_up, steps)
    model = functools.partial(ResNet, data.shape[2], args.blocks, args.width)
    training = make_training(model, schedule, mesh, args.seed)
    state, batches = training.state, feed.training(args.seed)
    # All compilations are before the first evaluation, which waits for all processes:
    # they begin the first step together.
    step = training.step.lower(state, *next(batches)).compile()
    settle = training.settle.lower(state).compile()

    def evaluate(state: State, epoch: int) -> None:
        accuracy = feed.accuracy(functools.partial(training.count_right, state))
        if jax.process_index() == 0:
            print(f"epoch {epoch}: held-out accuracy {accuracy:.4f}", flush=True)

    evaluate(state, 0)
    of_all = args.batch * jax.process_count()
    with Progress(steps, units_per_step=of_all, plot=args.plot) as progress:
        for number in range(1, steps + 1):
            state, loss, stats = step(state, *next(batches))
            progress.step(loss, stats)
            epoch, within = divmod(number, feed.steps_per_epoch)
            if within == 0 and (epoch % args.evaluate_every == 0 or number == steps):
                state = settle(state)
                evaluate(state, epoch)


def main() -> None:
    """Runs the command line."""
    args = parse_arguments()
    with jax_optireduce.init(mode=args.mode):  # 0
        train(args)


if __name__ == "__main__":
    main()
