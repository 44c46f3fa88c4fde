r"""Calls of mode "exact" beside `mpi4jax.allreduce` and `lax.psum` over Gloo.

    mpirun -n 4 --oversubscribe --mca pml ob1 --mca btl tcp,self \
        --mca mpi_yield_when_idle 1 python benchmarks/mpi.py

Each process is a rank of all three, which take turns of a few calls, in a random order
for every round. All reduce the same float32 array in a jitted function. The program
needs mpi4py and mpi4jax. With these options Open MPI uses TCP, as Gloo does; without
them it would use shared memory on one host.

The time of a call is that of its slowest rank. Rank 0 prints the medians and P99s in
ms, the ratios of the medians ours / theirs, and the CPU seconds of all ranks per GB of
the array. Sums are verified. Exit code: 0.
"""

import argparse
import functools
import os
import random
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import mpi4jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from mpi4py import MPI

import jax_optireduce
from jax_optireduce.tools import bench_figures, bench_rank

AXIS = bench_rank.AXIS

# Chosen: this mode learns no deadline; ten calls warm the memory.
WARM_UP_TURNS = 2

KINDS = OURS, *THEIRS = ("exact", "Gloo", "mpi4jax")

COLUMNS = (
    "size",
    *(f"{kind} {name}" for kind in KINDS for name in ("P50", "P99")),
    *(f"{OURS} / {kind}" for kind in THEIRS),
    *(f"{kind} CPU s/GB" for kind in KINDS),
)


def program(
    kind: str, local: np.ndarray, *, in_place: bool
) -> tuple[Callable[[jax.Array], jax.Array], Callable[[], jax.Array]]:
    """Returns the reduction of an array, and a maker of one from this rank's part."""
    donated = (0,) if in_place else ()
    if kind == "mpi4jax":
        # The arrays of mpi4jax are local to the process.
        reduce = functools.partial(mpi4jax.allreduce, op=MPI.SUM, comm=MPI.COMM_WORLD)
        make = functools.partial(jnp.array, local)
        return jax.jit(reduce, donate_argnums=donated), make
    reduce = functools.partial(lax.psum, axis_name=AXIS)
    if kind == OURS:
        reduce = functools.partial(jax_optireduce.psum, axis_name=AXIS, mode=OURS)
    mesh, spec = bench_rank.make_mesh(), PartitionSpec(AXIS)
    mapped = jax.shard_map(
        reduce, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    make = functools.partial(
        jax.make_array_from_process_local_data, NamedSharding(mesh, spec), local
    )
    return jax.jit(mapped, donate_argnums=donated), make


def measure(
    size_bytes: int, turns: int, *, in_place: bool
) -> dict[str, tuple[np.ndarray, float]]:
    """Measures all kinds at one size.

    Returns:
      By kind the times of its calls, in seconds, and the CPU time of a call on all
      ranks, in seconds.
    """
    world = MPI.COMM_WORLD
    local = np.full((1, size_bytes // 4), world.rank + 1, np.float32)
    want = world.size * (world.size + 1) // 2
    programs = {kind: program(kind, local, in_place=in_place) for kind in KINDS}
    kept = {kind: make() for kind, (_, make) in programs.items()}
    for kind, (reduce, make) in programs.items():
        got = np.asarray(reduce(make()).addressable_data(0))
        if not (got == want).all():
            raise RuntimeError(f"{kind}: {got}, not {want}")
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cpu_s = dict.fromkeys(KINDS, 0.0)
    for turn in range(WARM_UP_TURNS + turns):
        for kind in random.Random(turn).sample(KINDS, len(KINDS)):  # noqa: S311
            reduce, make = programs[kind]
            # In place, a call reduces the result of the previous one.
            x = jax.block_until_ready(make()) if in_place else kept[kind]
            before_s = time.process_time()
            for _ in range(bench_rank.TURN_CALLS):
                start = time.perf_counter()
                result = jax.block_until_ready(reduce(x))
                seconds[kind].append(time.perf_counter() - start)
                x = result if in_place else x
                # Freed here, not during the next timed call.
                del result
            cpu_s[kind] += time.process_time() - before_s
            if turn < WARM_UP_TURNS:
                seconds[kind].clear()
                cpu_s[kind] = 0.0
    return {
        kind: (
            np.max(world.allgather(seconds[kind]), axis=0),
            world.allreduce(cpu_s[kind]) / len(seconds[kind]),
        )
        for kind in KINDS
    }


def row(size: str, found: dict[str, tuple[np.ndarray, float]]) -> str:
    """Returns a line of the table."""
    medians = {kind: np.median(seconds) for kind, (seconds, _) in found.items()}
    gigabytes = bench_figures.parse_size(size) / 1e9
    cells = [size]
    for kind, (seconds, _) in found.items():
        p99 = np.percentile(seconds, 99, method="higher")
        cells += [f"{1e3 * medians[kind]:.3g}", f"{1e3 * p99:.3g}"]
    cells += [f"{medians[OURS] / medians[kind]:.2f}" for kind in THEIRS]
    cells += [f"{cpu_s / gigabytes:.2f}" for _, cpu_s in found.values()]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    sizes = ["1K", "8K", "64K", "512K", "4M", "32M"]
    add("--sizes", nargs="+", default=sizes, help=f"default {' '.join(sizes)}")
    add("--turns", type=int, default=20, help="counted turns of 5 calls (default 20)")
    add("--in-place", action="store_true", help="donate the arrays, as in `bench`")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with jax_optireduce.init(backend="optireduce"):
        bench_rank.connect_gloo(bench_rank.make_mesh())
        lines = [f"| {' | '.join(COLUMNS)} |", f"| --- |{' ---: |' * len(COLUMNS[1:])}"]
        lines += [
            row(
                size,
                measure(
                    bench_figures.parse_size(size), args.turns, in_place=args.in_place
                ),
            )
            for size in args.sizes
        ]
        lines.append(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
        if MPI.COMM_WORLD.rank == 0:
            print("\n".join(lines))


if __name__ == "__main__":
    main()
