"""Gradients as one bucket: jnp.concatenate against the copy of this package, on a CPU.

    python benchmarks/concatenation.py

Compiles the gradients of the network of examples/digits_train.py several times, as
separate arrays and joined in two ways, and prints the median time of each compiled
program in ms, in ascending order. XLA fuses `jnp.concatenate` with the computation of
its operands; the same program, compiled again, can be several times as slow.
Exit code: 0.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jax_optireduce._program.concatenate import concatenate

sys.path.append(str(Path(__file__).parents[1] / "examples"))

from digits_train import DigitNet, load

BATCH = 32
SEED = 0


def by_xla(rows: list[jax.Array]) -> jax.Array:
    """Concatenates as JAX does."""
    return jnp.concatenate([row[0] for row in rows])


def median_ms(join: Callable[[list[jax.Array]], jax.Array] | None, calls: int) -> float:
    """Compiles the gradients anew; returns the median time of a call.

    Args:
      join: makes one array of the gradients; None leaves them apart.
      calls: the number of timed ones.
    """
    images, labels, *_ = load(SEED)
    graph, params = nnx.split(DigitNet(nnx.Rngs(SEED)))

    def gradients(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            logits = nnx.merge(graph, params)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        leaves = jax.tree.leaves(jax.grad(loss)(params))
        return leaves if join is None else join([x.reshape(1, -1) for x in leaves])

    jax.clear_caches()
    arguments = params, images[:BATCH], labels[:BATCH]
    compiled = jax.jit(gradients).lower(*arguments).compile()
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)) * 1e3


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compilations", type=int, default=10, help="default 10")
    parser.add_argument("--calls", type=int, default=50, help="default 50")
    args = parser.parse_args()
    ways = {"apart": None, "jnp.concatenate": by_xla, "copied": concatenate}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.compilations):
        for way, join in ways.items():
            found[way].append(median_ms(join, args.calls))
    for way, times in found.items():
        print(f"{way:16}", *(f"{ms:6.1f}" for ms in sorted(times)))


if __name__ == "__main__":
    main()
