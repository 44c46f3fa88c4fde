"""What a call costs when nothing is wrong: `lax.psum` (Gloo), `exact`, `bounded`.

    python -m jax_optireduce launch -n 4 benchmarks/modes.py

The kinds take turns, call by call, so that what else the machine does hits all alike.
Prints, per size of the bucket, the median and the 99th percentile of a call over all
ranks, and ratios of the medians; in brackets the quartiles of the ratio from block to
block of 20 calls.
"""

import argparse
import itertools
import os
import time
from collections.abc import Callable

import jax
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_optireduce

AXIS = "ranks"

SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "25 MiB": 25 << 20}

# Calls before the first that counts. Source: a deadline is learned from 20.
WARM_UP = 25

# Calls of which one ratio is made.
BLOCK = 20


def sum_in(kind: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the sum over the ranks of one kind."""
    if kind == "lax.psum":
        return lambda x: lax.psum(x, AXIS)
    return lambda x: jax_optireduce.psum(
        x, AXIS, mode=kind, name=f"bench {kind} {x.size}"
    )


KINDS = ("lax.psum", "exact", "bounded")
RATIOS = ((1, 0), (2, 0), (2, 1))


def measure(mesh: jax.sharding.Mesh, size: int, calls: int) -> np.ndarray:
    """Returns the seconds of each call on this rank, [kinds, calls]."""
    spec = PartitionSpec(AXIS)
    programs = [
        jax.jit(
            jax.shard_map(
                sum_in(kind), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
            )
        )
        for kind in KINDS
    ]
    row = np.ones((1, size // 4), np.float32)
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, spec), row)
    for program in programs:
        program(x).block_until_ready()
    seconds = np.zeros((len(KINDS), WARM_UP + calls))
    orders = list(itertools.permutations(range(len(KINDS))))
    for call in range(WARM_UP + calls):
        # Each kind follows each other one equally often: what one leaves behind, such
        # as ranks that do not end together, is in the time of the next.
        for kind in orders[call % len(orders)]:
            start = time.perf_counter()
            programs[kind](x).block_until_ready()
            seconds[kind, call] = time.perf_counter() - start
    return seconds[:, WARM_UP:]


def show(title: str, seconds: np.ndarray) -> str:
    """Returns a line of the table.

    Args:
      title: of the size.
      seconds: of all ranks, [ranks, kinds, calls].
    """
    cells = [title]
    for kind in range(len(KINDS)):
        p50, p99 = np.percentile(seconds[:, kind], [50, 99])
        cells.append(f"{1e3 * p50:.3g} / {1e3 * p99:.3g}")
    blocks = np.stack(np.split(seconds, seconds.shape[2] // BLOCK, axis=2))
    medians = np.median(blocks, axis=(1, 3))  # [blocks, kinds]
    overall = np.median(seconds, axis=(0, 2))
    for one, other in RATIOS:
        low, high = np.percentile(medians[:, one] / medians[:, other], [25, 75])
        cells.append(f"{overall[one] / overall[other]:.2f} ({low:.2f} to {high:.2f})")
    return f"| {' | '.join(cells)} |"


def gather(own: np.ndarray) -> np.ndarray:
    """Returns what all ranks have, with an axis of ranks in front."""
    return np.asarray(multihost_utils.process_allgather(own))


def main() -> None:
    """Measures, and prints on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--calls", type=int, default=200, help=f"of each kind, a multiple of {BLOCK}"
    )
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    arguments = parser.parse_args()
    with jax_optireduce.init() as communicator:
        mesh = jax.make_mesh(
            (communicator.world_size,), (AXIS,), axis_types=(AxisType.Auto,)
        )
        lines = []
        for title in arguments.sizes:
            own = measure(mesh, SIZES[title], arguments.calls)
            lines.append(show(title, gather(own)))
            if communicator.rank == 0:
                print(f"{title}: load average {os.getloadavg()[0]:.1f}", flush=True)
        if communicator.rank == 0:
            print(
                f"{communicator.world_size} ranks, {os.cpu_count()} cores, "
                f"{arguments.calls} calls of each kind"
            )
            ratios = [f"{KINDS[one]} / {KINDS[other]}" for one, other in RATIOS]
            print(f"| size | {', ms | '.join(KINDS)}, ms | {' | '.join(ratios)} |")
            print(f"| --- |{' ---: |' * (len(KINDS) + len(ratios))}")
            print("\n".join(lines))


if __name__ == "__main__":
    main()
