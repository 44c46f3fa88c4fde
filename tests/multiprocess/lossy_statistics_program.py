"""Averages the same values many times in mode `lossy`, and reports the errors.

Run by test_lossy_statistics.py in every process; prints one line of JSON per rank.
"""

import argparse
import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce

# Entries of the bucket. Chosen: 64 blocks of the rotation and, with DATAGRAM_BYTES, 46
# datagrams in the shard of each of 4 ranks, enough for the law of large numbers.
ENTRIES = 1 << 16

# Chosen: Ethernet's largest UDP payload.
DATAGRAM_BYTES = 1472

# Calls of one compiled program.
CALLS_PER_PROGRAM = 100


def values(ranks: int) -> np.ndarray:
    """Returns the contributions of the ranks, float32 [ranks, ENTRIES].

    A heavy-tailed part common to all, most of it at the end of the bucket, where a
    deadline would cut; and noise of each rank's own.
    """
    generator = np.random.default_rng(1)
    shared = generator.standard_t(3, ENTRIES)
    shared[: -ENTRIES // 16] *= 0.1
    shared /= np.linalg.norm(shared)
    own = generator.standard_normal((ranks, ENTRIES)) / np.sqrt(ENTRIES)
    return (shared + own).astype(np.float32)


def directions(all_values: np.ndarray) -> np.ndarray:
    """Returns unit vectors along which a bias would show, float32 [number, ENTRIES].

    The mean itself (results that shrink), the deviation of each rank (an owner whose
    own contribution has too much weight), the end of the bucket (results that are cut
    off), and some random directions.
    """
    mean = all_values.mean(axis=0)
    tail = np.where(np.arange(ENTRIES) >= ENTRIES - 360, mean, 0)
    anywhere = np.random.default_rng(2).standard_normal((4, ENTRIES))
    rows = np.stack([mean, *(all_values - mean), tail, *anywhere])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def make_program(all_values: np.ndarray, mesh: jax.sharding.Mesh) -> jax.stages.Wrapped:
    """Returns CALLS_PER_PROGRAM calls as a program: sum of errors -> (sum, reports)."""
    mean = jnp.asarray(all_values.mean(axis=0, dtype=np.float64), jnp.float32)
    probes = jnp.asarray(directions(all_values))

    def one_call(
        sum_of_errors: jax.Array, own: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        # All ranks start together, so that missing data was lost and not late. Depends
        # on the errors so far, so that the call waits for the previous one.
        started = jax_optireduce.psum(
            jnp.isfinite(sum_of_errors[0]).astype(jnp.float32), "ranks", name="start"
        )
        own *= started / jax.lax.axis_size("ranks")
        found, stats = jax_optireduce.pmean(
            own, "ranks", mode="lossy", return_stats=True
        )
        error = found - mean
        missing = jnp.stack([stats.missing_contributions, stats.missing_results])
        return sum_of_errors + error, (probes @ error, error @ error, missing)

    def many_calls(
        sum_of_errors: jax.Array, own: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        total, reports = jax.lax.scan(
            lambda total, _: one_call(total, own[0]),
            sum_of_errors[0],
            length=CALLS_PER_PROGRAM,
        )
        return jax.tree.map(lambda x: x[None], (total, reports))

    return jax.jit(
        jax.shard_map(
            many_calls,
            mesh=mesh,
            in_specs=P("ranks"),
            out_specs=P("ranks"),
            check_vma=False,
        )
    )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--loss", type=float, required=True)
    parser.add_argument("--deadline-s", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    os.environ["JAX_OPTIREDUCE_DATAGRAM_BYTES_MAX"] = str(DATAGRAM_BYTES)
    with jax_optireduce.init(
        deadline_s=args.deadline_s,
        # The seed decides the sequence of losses: each rank needs its own.
        faults={
            "loss": args.loss,
            "seed": args.seed + 1000 * int(os.environ["JAX_PROCESS_ID"]),
        },
    ) as communicator:
        mesh = jax.make_mesh((communicator.world_size,), ("ranks",))
        sharding = NamedSharding(mesh, P("ranks"))
        all_values = values(communicator.world_size)
        own = all_values[communicator.rank][None]
        own = jax.make_array_from_process_local_data(sharding, own)
        total = jnp.zeros_like(own)
        program = make_program(all_values, mesh)
        reports = []
        for _ in range(args.calls // CALLS_PER_PROGRAM):
            total, report = program(total, own)
            local = jax.tree.map(lambda x: x.addressable_data(0)[0], report)
            reports.append(jax.tree.map(np.asarray, local))
        along, squared, missing = (
            np.concatenate(parts) for parts in zip(*reports, strict=True)
        )
        bias = np.asarray(total.addressable_data(0)[0], np.float64) / len(squared)
    result = {
        "rank": communicator.rank,
        "calls": len(squared),
        "along_mean": along.mean(axis=0, dtype=np.float64).tolist(),
        "along_deviation": along.std(axis=0, ddof=1, dtype=np.float64).tolist(),
        "squared_error": float(squared.mean(dtype=np.float64)),
        "squared_error_of_mean": float(bias @ bias),
        "missing_contributions": float(missing[:, 0].mean(dtype=np.float64)),
        "missing_results": float(missing[:, 1].mean(dtype=np.float64)),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
