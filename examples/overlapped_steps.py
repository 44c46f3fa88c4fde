r"""Train steps whose calls overlap with computation: ACCO and DeAR.

    python -m jax_optireduce launch -n 4 examples/overlapped_steps.py --step DeAR
    python -m jax_optireduce launch -n 4 examples/overlapped_steps.py --step ACCO \
      --mode bounded

Each function `*_step` is a train step to copy. In their equations G(p, B) is the mean
over the ranks, as of `lax.pmean`, of the gradients of the loss at the parameters p on
the batch B, of which each rank has a part; and U(p, G) is an update of p by the
optimizer. The steps, in which p[t] are the parameters after t of them:

    plain  p[t+1] = U(p[t], G(p[t], B[t]))
    ACCO   q[t+1] = U(p[t], G(q[t], B1[t])), an estimate of p[t+1]; q[0] = p[0]
           p[t+1] = U(p[t], (G(q[t], B1[t]) + G(p[t], B2[t])) / 2)
    DeAR   as plain, with equal bits

B1 and B2 are the halves of B. In mode `exact` the equations hold as they are. In
`bounded` a gradient that missed the deadline of its call is a part of the mean of a
later one, in every step. After the last step, and before an evaluation, a function
`*_last` applies the call that is still under way, and late data. When each step pays,
and its cost: docs/overlap.md. `benchmarks/accuracy.py` trains other models with the
same steps.
"""

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import images
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce

OPTIMIZER = optax.sgd(0.1)
AXIS = "data"

# Names of the calls. A drain needs one name for each call of a step.
NAME = "gradients"
FIRST, SECOND = "gradients of first halves", "gradients of second halves"

EVERYWHERE, BY_RANK = P(), P(AXIS)

# Inputs float32 [n, features] and labels int32 [n].
Batch = tuple[jax.Array, jax.Array]

Mode = Literal["exact", "agreed", "bounded", "lossy"]

# The statistics of the calls that have ended in a step.
Stats = list[jax_optireduce.CollectiveStats]


class Training(NamedTuple):
    """The parts of a step that differ from program to program.

    Attributes:
      loss: (parameters, batch) to the loss.
      optimizer: of Optax.
      axis: of the ranks.
      mode: of the calls.
    """

    loss: Callable[[Any, Batch], jax.Array]
    optimizer: optax.GradientTransformation
    axis: str
    mode: Mode


class State(NamedTuple):
    """The state of a training.

    Attributes:
      params: the parameters; for DeAR a list with a tree for each layer.
      inner: the state of the optimizer; for DeAR one for each layer.
      handle: of the call that is under way; for DeAR one for each layer.
    """

    params: Any
    inner: Any
    handle: Any


def layer(params: Any, x: jax.Array) -> jax.Array:
    """Returns the output of a layer; its input, such as a pixel, is cut at 0."""
    return jax.nn.relu(x) @ params["kernel"] + params["bias"]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean loss, in nats."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()


def loss_fn(layers: list[Any], batch: Batch) -> jax.Array:
    """Returns the loss of the network."""
    x, labels = batch
    for params in layers:
        x = layer(params, x)
    return cross_entropy(x, labels)


def updated(params: Any, inner: Any, means: Any, how: Training) -> tuple[Any, Any]:
    """Returns the parameters, of all layers or of one, and the optimizer's state."""
    updates, inner = how.optimizer.update(means, inner, params)
    return optax.apply_updates(params, updates), inner


def begun(params: Any, batch: Batch, how: Training, name: str) -> Any:
    """Computes gradients, begins their call, and returns its handle."""
    gradients = jax.grad(how.loss)(params, batch)
    return jax_optireduce.begin(gradients, how.axis, mode=how.mode, name=name)


def name_of(i: int) -> str:
    """Returns the name of the calls of a layer."""
    return f"{NAME} of layer {i}"


def with_late(means: Any, how: Training, *names: str) -> Any:
    """Returns means of the last call with the late data of the calls of these names."""
    for name in names if how.mode in ("agreed", "bounded") else ():
        late = jax_optireduce.drain(means, how.axis, mode=how.mode, name=name)
        means = jax.tree.map(jnp.add, means, late)
    return means


# --- The steps -----------------------------------------------------------------------


def plain_step(state: State, batch: Batch, how: Training) -> tuple[State, Stats]:
    """The update waits for the call of this step."""
    params, inner, handle = state
    gradients = jax.grad(how.loss)(params, batch)
    means, stats = jax_optireduce.average_gradients(
        gradients, how.axis, mode=how.mode, name=NAME, return_stats=True
    )
    return State(*updated(params, inner, means, how), handle), [stats]


def plain_last(state: State, how: Training) -> State:
    """Applies late data."""
    params, inner, _ = state
    means = with_late(jax.tree.map(jnp.zeros_like, params), how, NAME)
    return State(*updated(params, inner, means, how), None)


def acco_start(state: State, first: Batch, how: Training) -> State:
    """Begins the call of the first half of the first batch."""
    return state._replace(handle=begun(state.params, first, how, FIRST))


def acco_step(
    state: State, second: Batch, first: Batch, how: Training
) -> tuple[State, Stats]:
    """The first half of a batch has estimated parameters: a call has half a step.

    While the gradients of the first half of a batch B1 are under way, those of the
    second half B2 are computed; and while these are, those of the first half of the
    next batch, at an estimate q of the next parameters:

        g[t] = G(q[t], B1[t]),  h[t] = G(p[t], B2[t])
        q[t+1] = U(p[t], g[t]),  p[t+1] = U(p[t], (g[t] + h[t]) / 2)

    The optimizer state of the estimate is dropped. Source: the two stages of ACCO (A.
    Nabli et al., arXiv:2406.02613), with halves of equal size. There the second call
    has the sum of both gradients. Here it has those of the second half only, so that
    `bounded`, which adds late data to a later call, counts no gradient twice.

    Args:
      state: its handle is that of `acco_start`, or of the step before.
      second: the second half of this batch.
      first: the first half of the next batch.
      how: the training.
    """
    params, inner, handle = state
    other = begun(params, second, how, SECOND)
    half, stats = jax_optireduce.end(handle, after=other, return_stats=True)
    estimate, _ = updated(params, inner, half, how)
    following = begun(estimate, first, how, FIRST)
    rest, others = jax_optireduce.end(other, after=following, return_stats=True)
    means = jax.tree.map(lambda a, b: (a + b) / 2, half, rest)
    return State(*updated(params, inner, means, how), following), [stats, others]


def acco_last(state: State, how: Training) -> State:
    """Applies the call of a first half, and late data, as a part of a step."""
    params, inner, handle = state
    means = with_late(jax_optireduce.end(handle), how, FIRST, SECOND)
    means = jax.tree.map(lambda g: g / 2, means)
    return State(*updated(params, inner, means, how), None)


def dear_step(state: State, batch: Batch, how: Training) -> tuple[State, Stats]:
    """A layer waits for its call, and is updated, just before it is used.

    p[t+1] = U(p[t], G(p[t], B[t])), with the bits of `plain_step` in mode `exact`; but
    the update is in the next step. The call of a layer begins in the backward pass. Its
    two stages, a reduce-scatter and an all-gather, continue beyond the end of the
    program, and it ends in the forward pass of the next step, in front of its layer.
    The network is that of `loss_fn`.

    Source: DeAR (L. Zhang et al., arXiv:2302.12445). There the second stage begins with
    the next step, in the order of the forward pass; here as soon as the first one has
    ended.

    Args:
      state: its handle is None at the first step. Its parameters lack the update of the
        last step: see `dear_last`.
      batch: of this step.
      how: the training.
    """
    (layers, inner), handles = map(list, state[:2]), state.handle
    x, labels = batch
    pullbacks, ended = [], []
    for i in range(len(layers)):
        if handles is not None:
            means, stats = jax_optireduce.end(handles[i], after=x, return_stats=True)
            layers[i], inner[i] = updated(layers[i], inner[i], means, how)
            ended.append(stats)
        x, pullback = jax.vjp(layer, layers[i], x)
        pullbacks.append(pullback)
    cotangent = jax.grad(cross_entropy)(x, labels)
    following: list[Any] = [None] * len(layers)
    for i in reversed(range(len(layers))):
        gradients, cotangent = pullbacks[i](cotangent)
        following[i] = jax_optireduce.begin(
            gradients, how.axis, mode=how.mode, name=name_of(i)
        )
    return State(layers, inner, following), ended


def dear_last(state: State, how: Training) -> State:
    """Applies the calls of all layers, and late data."""
    layers, inner, handles = state
    for i, handle in enumerate(handles):
        means = with_late(jax_optireduce.end(handle), how, name_of(i))
        layers[i], inner[i] = updated(layers[i], inner[i], means, how)
    return State(layers, inner, None)


# --- The program ---------------------------------------------------------------------


def first_layers(features: int, width: int, depth: int, seed: int) -> list[Any]:
    """Returns the parameters of a new network with `depth` layers."""
    sizes = [features, *[width] * (depth - 1), images.CLASSES]
    keys = jax.random.split(jax.random.key(seed), depth)
    return [
        {
            "kernel": jax.random.normal(key, (n, m)) * (2 / n) ** 0.5,
            "bias": jnp.zeros(m),
        }
        for key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def half_batches(
    mesh: Mesh, split: images.Split, rows: int, seed: int
) -> Iterator[Batch]:
    """Yields halves of batches, of which this process has `rows` examples."""
    over = NamedSharding(mesh, BY_RANK)
    x = split.images.reshape(len(split), -1).astype(np.float32) / 16
    random = np.random.default_rng([seed, jax.process_index()])
    while True:
        chosen = random.integers(len(split), size=rows)
        yield (
            jax.make_array_from_process_local_data(over, x[chosen]),
            jax.make_array_from_process_local_data(over, split.labels[chosen]),
        )


def mapped(mesh: Mesh, function: Callable[..., State], batches: int) -> Any:
    """Returns a jitted function of a state and a number of batches."""
    specs = (EVERYWHERE, *[BY_RANK] * batches)
    over = jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=EVERYWHERE, check_vma=False
    )
    return jax.jit(over, donate_argnums=(0,) if batches else ())


def programs(mesh: Mesh, layers: list[Any], step: str, mode: Mode) -> Any:
    """Returns the first state, and three functions: for the start, a step and the end.

    The first one gets a state and half a batch; it is None where a step begins with a
    whole batch. A step gets a state and two halves.
    """
    how = Training(loss_fn, OPTIMIZER, AXIS, mode)
    inner = OPTIMIZER.init(layers)
    if step == "ACCO":
        start = mapped(mesh, functools.partial(acco_start, how=how), 1)
        one = mapped(mesh, lambda p, b2, b1: acco_step(p, b2, b1, how)[0], 2)
        last = mapped(mesh, functools.partial(acco_last, how=how), 0)
        return State(layers, inner, None), start, one, last
    if step == "DeAR":
        inner = [OPTIMIZER.init(params) for params in layers]
    function, end = {
        "plain": (plain_step, plain_last),
        "DeAR": (dear_step, dear_last),
    }[step]

    def whole(state: State, first: Batch, second: Batch) -> State:
        x, labels = map(jnp.concatenate, zip(first, second, strict=True))
        return function(state, (x, labels), how)[0]

    last = mapped(mesh, lambda state: end(state, how), 0)
    return State(layers, inner, None), None, mapped(mesh, whole, 2), last


def train(
    mesh: Mesh, layers: list[Any], halves: Iterator[Batch], how: argparse.Namespace
) -> tuple[list[Any], list[float]]:
    """Trains by `how.step`; returns the parameters and the seconds of each step."""
    state, start, step, last = programs(mesh, layers, how.step, how.mode)
    if start:
        state = start(state, next(halves))
    seconds = []
    for pair in itertools.islice(zip(halves, halves, strict=False), how.steps):
        began = time.perf_counter()
        state = jax.block_until_ready(step(state, *pair))
        seconds.append(time.perf_counter() - began)
    return last(state).params, seconds


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--step", choices=["plain", "ACCO", "DeAR"], default="plain")
    add("--mode", default="exact", help="of the calls (default exact)")
    add("--steps", type=int, default=200, help="default 200")
    add("--batch", type=int, default=64, help="of each rank, an even number (64)")
    add("--layers", type=int, default=4, help="default 4")
    add("--width", type=int, default=128, help="of the hidden layers (128)")
    add("--seed", type=int, default=0, help="default 0")
    return parser.parse_args()


def main() -> None:
    """Trains and evaluates."""
    args = parse_arguments()
    with jax_optireduce.init():
        mesh = jax.make_mesh((jax.device_count(),), (AXIS,))
        data = images.load(None)
        sizes = (data.training.images[0].size, args.width, args.layers)
        first = functools.partial(first_layers, *sizes, args.seed)
        layers = jax.jit(first, out_shardings=NamedSharding(mesh, EVERYWHERE))()
        halves = half_batches(mesh, data.training, args.batch // 2, args.seed)
        layers, seconds = train(mesh, layers, halves, args)
        x = data.held_out.images.reshape(len(data.held_out), -1) / 16
        for params in jax.tree.map(lambda leaf: leaf.addressable_data(0), layers):
            x = layer(params, jnp.asarray(x))
        right = np.asarray(x).argmax(1) == data.held_out.labels
    print(
        f"{args.step}, {args.mode}: {args.steps} steps of "
        f"{1000 * statistics.median(seconds):.1f} ms, the median; "
        f"held-out accuracy {right.mean():.4f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
