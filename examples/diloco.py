"""DiLoCo: many local steps, then one average, for slow links between sites.

    python -m jax_optireduce launch -n 4 --replicas examples/diloco.py
    python -m jax_optireduce launch -n 4 --replicas examples/diloco.py --every 1

Each replica takes `--every` steps of AdamW with its own parameters and data between two
outer steps, which average the work of all: docs/outer.md. It sends a fraction of the
bytes of data-parallel training, and no step waits for a replica that is slow, cut off
or dead.
"""

import argparse
from typing import Any

import images
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jax_optireduce
from jax_optireduce.outer import Outer

# Longest outer call, in seconds. Chosen: 100 MB of parameters among 4 sites take 12 s
# at 100 Mbit/s, where the default of a second would make most of them late.
DEADLINE_MAX_S = 30.0


class Network(nnx.Module):
    """Three convolutions and a dense layer: 93,962 parameters for digits."""

    def __init__(self, colours: int, rngs: nnx.Rngs) -> None:
        """Draws the initial parameters from `rngs`."""
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


def make_step(graph: Any, optimizer: optax.GradientTransformation) -> Any:
    """Returns the inner step, without communication."""

    def step_fn(params: Any, inner: Any, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        def loss_fn(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, inner = optimizer.update(gradients, inner, params)
        return optax.apply_updates(params, updates), inner, loss

    return jax.jit(step_fn, donate_argnums=(0, 1))


def scaled(pixels: np.ndarray) -> np.ndarray:
    """Returns pixels from 0 to 1, float32."""
    return pixels.astype(np.float32) / max(1, pixels.max())


def main() -> None:
    """Trains, and prints loss, accuracy and bytes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="cifar-10-python.tar.gz; without it: digits")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps to an outer one")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0, help="steps for a call")
    parser.add_argument("--wire-format", default="int8")
    parser.add_argument("--batch", type=int, default=32, help="of a replica (32)")
    parser.add_argument("--rate", type=float, default=2e-3, help="of AdamW (2e-3)")
    args = parser.parse_args()

    session = jax_optireduce.init(deadline_max_s=DEADLINE_MAX_S)
    data = images.load(args.data)
    pixels, labels = scaled(data.training.images), data.training.labels
    network = Network(data.shape[2], nnx.Rngs(0))
    graph, params = nnx.split(network)
    optimizer = optax.adamw(args.rate)
    outer = Outer(
        every=args.every,
        parts=args.parts,
        delay=args.delay,
        wire_format=args.wire_format,
    )
    state = params, optimizer.init(params), outer.init(params)
    inner_step = make_step(graph, optimizer)
    (params, inner, own), step = jax_optireduce.join(state)

    def settle(state: Any) -> Any:
        params, own = outer.settle(state[0], state[2])
        return params, state[1], own

    before = jax_optireduce.stats()["bytes_sent"]
    first = step
    while step < args.steps:
        random = np.random.default_rng((step, session.place))
        rows = random.integers(len(labels), size=args.batch)
        params, inner, loss = inner_step(params, inner, pixels[rows], labels[rows])
        step += 1
        params, own = outer.step(params, own, step)
        if step % 50 == 0:
            print(f"step {step}: loss {float(loss):.3f}", flush=True)
        params, inner, own = jax_optireduce.admit((params, inner, own), step, settle)
    sent = (jax_optireduce.stats()["bytes_sent"] - before) / (step - first)
    params, own = outer.settle(params, own)
    logits = nnx.merge(graph, own.anchors)(jnp.asarray(scaled(data.held_out.images)))
    right = float((logits.argmax(-1) == data.held_out.labels).mean())
    print(f"held-out accuracy {right:.4f}; sent {sent:,.0f} bytes a step", flush=True)
    jax_optireduce.shutdown()


if __name__ == "__main__":
    main()
