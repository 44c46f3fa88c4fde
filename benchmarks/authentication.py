"""The cost of authentication and encryption: `psum` of 4 B to 1 MB, two ranks.

    python -m jax_optireduce launch -n 2 benchmarks/authentication.py

The kinds of protection take turns in one run: a session of each, repeatedly, so that
other load of the machine affects all equally. The program prints, per size, the median
time of a call with tags (the default) and the ratios of the other kinds to it; in
brackets the quartiles of that ratio over the turns.
"""

import argparse
import itertools
import logging
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_optireduce

# 4 B, 16 B, ... 1 MiB.
SIZES = tuple(4**power for power in range(1, 11))

KINDS: dict[str, dict[str, Any]] = {
    "tags": {},
    "nothing": {"advanced": {"authenticate": False}},
    "encrypted": {"encrypt": True},
}

# Calls before the first counted one, which fill caches and open the window.
WARM_UP = 20


def make_program() -> tuple[
    Callable[[jax.Array], jax.Array], Callable[[int], jax.Array]
]:
    """Returns the mapped `psum`, and a maker of arguments by size in bytes."""
    mesh = jax.make_mesh((jax.device_count(),), ("dp",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("dp")

    def total(x: jax.Array) -> jax.Array:
        return jax_optireduce.psum(x, "dp", name=f"bench {x.size}")

    def argument(size: int) -> jax.Array:
        rows = np.ones((jax.device_count(), size // 4), np.float32)
        return jax.make_array_from_callback(
            rows.shape, NamedSharding(mesh, spec), lambda at: rows[at]
        )

    mapped = jax.shard_map(
        total, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    return jax.jit(mapped), argument


def measure(
    program: Callable[[jax.Array], jax.Array], x: jax.Array, calls: int
) -> list[float]:
    """Returns the seconds of each call."""
    times = []
    for call in range(WARM_UP + calls):
        start = time.perf_counter()
        program(x).block_until_ready()
        if call >= WARM_UP:
            times.append(time.perf_counter() - start)
    return times


def show(times: dict[tuple[str, int], list[list[float]]]) -> None:
    """Prints the table."""
    others = [kind for kind in KINDS if kind != "tags"]
    print(f"| bytes | tags, us | {' | '.join(f'{kind} / tags' for kind in others)} |")
    print(f"| ---: | ---: |{' ---: |' * len(others)}")
    for size in SIZES:
        medians = {
            kind: statistics.median(itertools.chain.from_iterable(times[kind, size]))
            for kind in KINDS
        }
        cells = [f"{size}", f"{medians['tags'] * 1e6:.1f}"]
        for kind in others:
            # Turn by turn, so that a slow minute of the machine affects both.
            ratios = [
                statistics.median(other) / statistics.median(tags)
                for other, tags in zip(
                    times[kind, size], times["tags", size], strict=True
                )
            ]
            ratio = medians[kind] / medians["tags"]
            low, _, high = statistics.quantiles(ratios)
            cells.append(f"{ratio:.2f} ({low:.2f} to {high:.2f})")
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Measures, and prints on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20, help="sessions of each kind")
    parser.add_argument("--calls", type=int, default=12, help="per size and session")
    arguments = parser.parse_args()
    # The warning of authenticate=False is for programs, not for this table.
    logging.getLogger("jax_optireduce").setLevel(logging.ERROR)
    times: dict[tuple[str, int], list[list[float]]] = {
        (kind, size): [] for kind in KINDS for size in SIZES
    }
    program, rank = None, 0
    for _ in range(arguments.turns):
        for kind, options in KINDS.items():
            rank = jax_optireduce.init(**options).rank
            if program is None:
                program, argument = make_program()
            for size in SIZES:
                times[kind, size].append(
                    measure(program, argument(size), arguments.calls)
                )
            jax_optireduce.shutdown()
    if rank == 0:
        print(
            f"{jax.process_count()} ranks, {os.cpu_count()} cores, load average "
            f"{os.getloadavg()[0]:.1f}, {arguments.turns * arguments.calls} calls each"
        )
        show(times)


if __name__ == "__main__":
    main()
