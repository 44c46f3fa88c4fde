"""DiLoCo: many local steps, then one average, for slow links between sites.

    python -m jax_optireduce launch -n 4 examples/diloco.py
    python -m jax_optireduce launch -n 4 examples/diloco.py --local-steps 1

After A. Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language
Models*, 2023. Each rank, a device, has its own parameters, and takes H steps of AdamW
with them and its own data. These inner steps do not communicate. Then the *outer
gradient* of a rank, its parameters at the start of the round less those at its end, is
averaged over the ranks in one call, and an outer optimizer, SGD with Nesterov momentum,
takes one step with the mean. All ranks start the next round from the result. A step
thus sends 1/H of the bytes of data-parallel training: docs/vision-and-diloco.md.

**A late outer gradient** is the work of H steps of one site that missed the deadline of
its round. The call is `bounded`, the default, which fits it:

* The round ends without it. The other sites do not wait for a site that is slow, cut
  off or dead; `exact` would, in each round.
* The mean of the round lacks that part, as if the site had not moved. It is in the mean
  of the next round, not lost; `lossy` would drop the work of H steps.
* It is one round old then. The outer optimizer is linear in the gradient, so the sum of
  all its steps is right, and replicas that got the part at different rounds approach
  each other again. `resync` makes them equal, before each evaluation here.

With `--delay` the outer call overlaps with the inner steps of the next round: `begin`
starts it, `end` waits for it a round later (docs/overlap.md). Until then a rank goes on
from its own parameters, so that only the work of the others is a round late.
"""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import images
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from training_progress import Progress

import jax_optireduce

# Source: Douillard et al., the tuned outer optimizer.
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9

OUTER_CALL = "outer gradient"

# Longest outer call, in seconds. Chosen: 100 MB of parameters among 4 sites take 12 s
# at 100 Mbit/s, where the default of a second would make most of them late.
DEADLINE_MAX_S = 30.0

EVERYWHERE, BY_RANK = P(), P("data")


class Network(nnx.Module):
    """Three convolutions and a dense layer: 93,962 parameters for digits."""

    def __init__(self, colours: int, rngs: nnx.Rngs) -> None:
        widths = ((colours, 32, 1), (32, 64, 2), (64, 128, 2))
        self.convolutions = nnx.List(
            [
                nnx.Conv(before, after, (3, 3), strides=stride, rngs=rngs)
                for before, after, stride in widths
            ]
        )
        self.head = nnx.Linear(128, images.CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 [n, height, width, colours] to logits [n, classes]."""
        for convolution in self.convolutions:
            x = nnx.relu(convolution(x))
        return self.head(x.mean((1, 2)))


class Outer(NamedTuple):
    """State of all ranks, equal on them but for data that was late.

    Attributes:
      params: parameters after the last outer step.
      optimizer: state of the outer optimizer.
      handle: the outer call under way; without a delay that of no call.
    """

    params: Any
    optimizer: Any
    handle: Any


class Inner(NamedTuple):
    """State of each rank by itself: the rows of arrays [ranks, …] over "data".

    Attributes:
      start: parameters at the start of the round.
      params: parameters.
      optimizer: state of the inner optimizer; it outlives the round.
    """

    start: Any
    params: Any
    optimizer: Any


class Training(NamedTuple):
    """The compiled functions of a training.

    Attributes:
      create: first parameters to (Outer, Inner).
      inner_step: (Inner, x, labels) to (Inner, loss [ranks]); no communication.
      outer_step: (Outer, Inner) to (Outer, Inner, statistics of the call): the end of a
        round.
      settle: (Outer, Inner) after an outer step to those for an evaluation or a
        checkpoint: no data in flight, equal replicas.
    """

    create: Callable[[Any], tuple[Outer, Inner]]
    inner_step: Callable[..., Any]
    outer_step: Callable[..., Any]
    settle: Callable[..., tuple[Outer, Inner]]


def make_training(
    loss_fn: Callable[..., jax.Array],
    inner: optax.GradientTransformation,
    mesh: Mesh,
    *,
    outer_rate: float,
    outer_momentum: float,
    delayed: bool,
) -> Training:
    """Makes the functions of a training.

    Args:
      loss_fn: (parameters, x, labels) to the mean loss of a rank's batch, float32 [].
      inner: the optimizer of each rank.
      mesh: the ranks, along "data".
      outer_rate: learning rate of the outer optimizer.
      outer_momentum: its Nesterov momentum.
      delayed: whether the outer call overlaps with the next round.
    """
    outer = optax.sgd(outer_rate, outer_momentum, nesterov=True)

    def create(params: Any) -> tuple[Outer, Inner]:
        own = Inner(params, params, inner.init(params))
        return started(params, outer.init(params)), as_row(own)

    def inner_step(own: Inner, x: jax.Array, labels: jax.Array) -> tuple[Inner, Any]:
        start, params, optimizer = of_row(own)
        # The parameters vary over "data", so JAX does not add up their gradients.
        loss, gradients = jax.value_and_grad(loss_fn)(params, x, labels)
        updates, optimizer = inner.update(gradients, optimizer, params)
        params = optax.apply_updates(params, updates)
        return as_row(Inner(start, params, optimizer)), loss[None]

    def outer_step(state: Outer, own: Inner) -> tuple[Outer, Inner, Any]:
        start, params, optimizer = of_row(own)
        gradient = jax.tree.map(jnp.subtract, start, params)
        if delayed:
            handle = jax_optireduce.begin(gradient, "data", name=OUTER_CALL)
            mean, stats = jax_optireduce.end(
                state.handle, after=handle, return_stats=True
            )
            state = applied(outer, state, mean)._replace(handle=handle)
            # The next round starts with this one's work, whose mean is under way.
            start = jax.tree.map(jnp.subtract, state.params, gradient)
        else:
            mean, stats = jax_optireduce.average_gradients(
                gradient, "data", name=OUTER_CALL, return_stats=True
            )
            state = applied(outer, state, mean)
            start = state.params
        return state, as_row(Inner(start, start, optimizer)), stats

    def settle(state: Outer, own: Inner) -> tuple[Outer, Inner]:
        if delayed:
            state = applied(outer, state, jax_optireduce.end(state.handle))
        rest = jax_optireduce.drain(state.params, "data", name=OUTER_CALL)
        params = jax.tree.map(lambda p, g: p - outer_rate * g, state.params, rest)
        params, optimizer = jax_optireduce.resync((params, state.optimizer), "data")
        own = Inner(params, params, of_row(own).optimizer)
        return started(params, optimizer), as_row(own)

    both = (EVERYWHERE, BY_RANK)
    return Training(
        compiled(mesh, create, EVERYWHERE, results=both, donated=()),
        compiled(mesh, inner_step, *[BY_RANK] * 3, results=BY_RANK, donated=0),
        compiled(mesh, outer_step, *both, results=(*both, EVERYWHERE), donated=(0, 1)),
        compiled(mesh, settle, *both, results=both, donated=(0, 1)),
    )


def started(params: Any, optimizer: Any) -> Outer:
    """Returns the state without a call under way."""
    return Outer(params, optimizer, jax_optireduce.empty_handle(params, "data"))


def applied(outer: optax.GradientTransformation, state: Outer, mean: Any) -> Outer:
    """Returns the state after an outer step along a mean."""
    updates, optimizer = outer.update(mean, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    return Outer(params, optimizer, state.handle)


def compiled(mesh: Mesh, function: Any, *specs: P, results: Any, donated: Any) -> Any:
    """Returns a jitted function of each rank."""
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=results)
    return jax.jit(mapped, donate_argnums=donated)


def of_row(tree: Any) -> Any:
    """Returns the values of this rank: its row of arrays [ranks, …]."""
    return jax.tree.map(lambda x: x[0], tree)


def as_row(tree: Any) -> Any:
    """Undoes `of_row`."""
    return jax.tree.map(lambda x: x[None], tree)


def make_count(graph: nnx.GraphDef, mesh: Mesh) -> Callable[..., jax.Array]:
    """Returns (parameters, x, labels) to the number of right predictions, int32 []."""

    def count(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        right = nnx.merge(graph, params)(x).argmax(-1) == labels
        return jax_optireduce.psum(right.sum(), "data", mode="exact")

    specs = (EVERYWHERE, BY_RANK, BY_RANK)
    return jax.jit(
        jax.shard_map(count, mesh=mesh, in_specs=specs, out_specs=EVERYWHERE)
    )


def bytes_sent() -> int:
    """Returns the bytes that this process has sent through jax_optireduce."""
    return jax_optireduce.stats().get("bytes_sent", 0)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="cifar-10-python.tar.gz; without it: digits")
    parser.add_argument("--rounds", type=int, default=20, help="outer steps (20)")
    parser.add_argument(
        "--local-steps", type=int, default=10, help="inner steps of a round, H (10)"
    )
    parser.add_argument("--delay", action="store_true", help="overlap the outer call")
    parser.add_argument("--batch", type=int, default=32, help="of a rank (32)")
    parser.add_argument("--rate", type=float, default=2e-3, help="of AdamW (2e-3)")
    parser.add_argument("--outer-rate", type=float, default=OUTER_RATE)
    parser.add_argument("--outer-momentum", type=float, default=OUTER_MOMENTUM)
    parser.add_argument(
        "--evaluate-every", type=int, default=5, help="in rounds, and at the end (5)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--mode", default="bounded", help="of outer calls (bounded)")
    parser.add_argument(
        "--deadline-max-s",
        type=float,
        default=DEADLINE_MAX_S,
        help=f"longest outer call ({DEADLINE_MAX_S})",
    )
    parser.add_argument("--plot", type=Path, help="path of a picture, .png")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    """Trains and evaluates."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    data = images.load(args.data)
    local = args.batch * jax.local_device_count()
    feed = images.Feed(data, local, NamedSharding(mesh, BY_RANK))
    create = functools.partial(Network, data.shape[2])
    graph = nnx.graphdef(nnx.eval_shape(lambda: create(nnx.Rngs(args.seed))))
    first = jax.jit(
        lambda: nnx.state(create(nnx.Rngs(args.seed))),
        out_shardings=NamedSharding(mesh, EVERYWHERE),
    )

    def loss_fn(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, params)(x)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean()

    training = make_training(
        loss_fn,
        optax.adamw(args.rate),
        mesh,
        outer_rate=args.outer_rate,
        outer_momentum=args.outer_momentum,
        delayed=args.delay,
    )
    run(args, training, training.create(first()), feed, make_count(graph, mesh))


def run(
    args: argparse.Namespace,
    training: Training,
    state: tuple[Outer, Inner],
    feed: images.Feed,
    count: Callable[..., jax.Array],
) -> None:
    """Makes the rounds of a training, shows them, and evaluates."""
    (outer, own), batches, sent = state, feed.training(args.seed), None
    steps, of_all = args.rounds * args.local_steps, args.batch * jax.device_count()
    with Progress(steps, units_per_step=of_all, plot=args.plot) as progress:
        for ended in range(1, args.rounds + 1):
            for _ in range(args.local_steps - 1):
                own, loss = training.inner_step(own, *next(batches))
                progress.step(loss)
            own, loss = training.inner_step(own, *next(batches))
            outer, own, stats = training.outer_step(outer, own)
            progress.step(loss, stats)
            if ended % args.evaluate_every == 0 or ended == args.rounds:
                jax.block_until_ready(outer)
                # The evaluations do not count.
                sent = sent or bytes_sent() / (ended * args.local_steps)
                outer, own = training.settle(outer, own)
                share = feed.accuracy(functools.partial(count, outer.params))
                if jax.process_index() == 0:
                    print(f"round {ended}: held-out accuracy {share:.4f}", flush=True)
    if jax.process_index() == 0:
        print(f"sent by this process: {sent:,.0f} bytes a step", flush=True)


def main() -> None:
    """Runs the command line."""
    args = parse_arguments()
    with jax_optireduce.init(mode=args.mode, deadline_max_s=args.deadline_max_s):
        train(args)


if __name__ == "__main__":
    main()
