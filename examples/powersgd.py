"""PowerSGD: gradients as products of two thin matrices, by two exact calls.

    python -m jax_optireduce launch -n 4 --replicas examples/powersgd.py

`powersgd` is an Optax transformation like any other: it averages gradients over the
replicas, so the optimizer behind it sees the same ones everywhere. It sends rank *
(rows + columns) numbers of a matrix. The rest of a gradient, which they do not express,
stays with its replica, and joins its next one.

Source: T. Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", arXiv:1905.13727, algorithms 1 and 2.
"""

import argparse
import math
from typing import Any, NamedTuple

import diloco
import images
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jax_optireduce
from jax_optireduce import REPLICAS


class PowerSgdState(NamedTuple):
    """The state of `powersgd`.

    Attributes:
      right: the right factor of each matrix, [columns, rank]; None: it is sent whole.
      rest: the part of this replica's gradients that the factors have not expressed.
    """

    right: tuple[jax.Array | None, ...]
    rest: tuple[jax.Array | None, ...]


def powersgd(axis: Any, rank: int) -> optax.GradientTransformation:
    """Averages gradients over an axis in factors of a rank.

    A leaf is a matrix with the columns of its last dimension. One that the factors
    would not make smaller is averaged as it is.

    Args:
      axis: of the average: `REPLICAS`, or a mesh axis.
      rank: of the factors, at least 1.
    """

    def init_fn(params: Any) -> Any:
        right, rest = [], []
        for i, leaf in enumerate(jax.tree.leaves(params)):
            rows, columns = _shape(leaf)
            thin = rank * (rows + columns) < rows * columns
            # Equal on all replicas.
            draw = jax.random.normal(jax.random.key(i), (columns, rank))
            right.append(draw if thin else None)
            rest.append(jnp.zeros((rows, columns)) if thin else None)
        return PowerSgdState(tuple(right), tuple(rest))

    def update_fn(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        leaves, treedef = jax.tree.flatten(updates)
        thin = [i for i, right in enumerate(state.right) if right is not None]
        whole = [i for i, right in enumerate(state.right) if right is None]
        matrices = {
            i: leaves[i].reshape(_shape(leaves[i])) + state.rest[i] for i in thin
        }
        # All leaves share two calls.
        lefts, means = jax_optireduce.pmean(
            ([matrices[i] @ state.right[i] for i in thin], [leaves[i] for i in whole]),
            axis,
            name="PowerSGD left",
        )
        lefts = [jnp.linalg.qr(left)[0] for left in lefts]
        rights = jax_optireduce.pmean(
            [matrices[i].T @ left for i, left in zip(thin, lefts, strict=True)],
            axis,
            name="PowerSGD right",
        )
        right, rest = list(state.right), list(state.rest)
        for i, mean in zip(whole, means, strict=True):
            leaves[i] = mean
        for i, left, own in zip(thin, lefts, rights, strict=True):
            product = left @ own.T
            right[i], rest[i] = own, matrices[i] - product
            leaves[i] = product.reshape(leaves[i].shape)
        return treedef.unflatten(leaves), PowerSgdState(tuple(right), tuple(rest))

    return optax.GradientTransformation(init_fn, update_fn)


def _shape(leaf: Any) -> tuple[int, int]:
    """Returns rows and columns of a leaf as a matrix."""
    columns = leaf.shape[-1] if leaf.ndim else 1
    return math.prod(leaf.shape) // columns, columns


def main() -> None:
    """Trains on digits, and prints loss, accuracy and bytes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rank", type=int, default=4, help="of the factors (4)")
    parser.add_argument("--batch", type=int, default=32, help="of a replica (32)")
    args = parser.parse_args()

    session = jax_optireduce.init()
    data = images.load(None)
    pixels, labels = diloco.scaled(data.training.images), data.training.labels
    graph, params = nnx.split(diloco.Network(data.shape[2], nnx.Rngs(0)))
    optimizer = optax.chain(powersgd(REPLICAS, args.rank), optax.sgd(0.05, 0.9))
    step_fn = diloco.make_step(graph, optimizer)
    state: Any
    (params, state), step = jax_optireduce.join((params, optimizer.init(params)))

    if step:
        # The state is that of another replica, whose rest is not ours.
        rest = jax.tree.map(jnp.zeros_like, state[0].rest)
        state = (state[0]._replace(rest=rest), *state[1:])

    before, first = jax_optireduce.stats()["bytes_sent"], step
    while step < args.steps:
        rows = np.random.default_rng((step, session.place)).integers(
            len(labels), size=args.batch
        )
        params, state, loss = step_fn(params, state, pixels[rows], labels[rows])
        step += 1
        if step % 50 == 0:
            print(f"step {step}: loss {float(loss):.3f}", flush=True)
        params, state = jax_optireduce.admit((params, state), step)
    sent = (jax_optireduce.stats()["bytes_sent"] - before) / (step - first)
    logits = nnx.merge(graph, params)(jnp.asarray(diloco.scaled(data.held_out.images)))
    right = float((logits.argmax(-1) == data.held_out.labels).mean())
    print(f"held-out accuracy {right:.4f}; sent {sent:,.0f} bytes a step", flush=True)
    jax_optireduce.shutdown()


if __name__ == "__main__":
    main()
