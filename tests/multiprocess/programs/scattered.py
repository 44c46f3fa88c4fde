"""Sums that are scattered, and parameters that are gathered.

Arguments: seconds that the last process sleeps before each call, and the order of the
devices in the mesh ("straight" or "mixed": devices of one process are not neighbours).
Prints

  "conserved <mode> <largest error> <share late> <share deferred>"
                       for each mode of `psum_scatter`: the error of the total of all
                       calls and the drain in the parts of this process, compared with
                       the contributions of all ranks, in whole numbers
  "gathered <digest>"  of the results of `all_gather`, in all dtypes
  "wrong <number>"     of these results that differ from the values of the ranks
"""

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import meshes
import numpy as np

import jax_optireduce as jo

SLEEP_S, ORDER = float(sys.argv[1]), sys.argv[2]
CALLS = 12
COLUMNS = 3000


def scatter(mesh: jax.sharding.Mesh, mode: str) -> None:
    """No data is lost or added twice: sums of whole numbers are exact."""
    name = f"scattered, {mode}"

    def step(row: jax.Array) -> Any:
        tree = {"a": row[:, :1000], "b": row[:, 1000:].astype(jnp.int32)}
        return jo.psum_scatter(
            tree, "dp", mode=mode, name=name, tiled=True, return_stats=True
        )

    def end(row: jax.Array) -> Any:
        tree = {"a": row[:, :1000], "b": row[:, 1000:].astype(jnp.int32)}
        return jo.drain(
            tree,
            "dp",
            mode=mode,
            name=name,
            mean=False,
            scatter_dimension=0,
            tiled=True,
        )

    ranks = jax.device_count()
    random = np.random.default_rng(1)
    call, drain = meshes.mapped(mesh, step), meshes.mapped(mesh, end)
    given = np.zeros((2 * ranks, COLUMNS))
    got = {}
    late = deferred = 0.0
    for _ in range(CALLS):
        rows = random.integers(-99, 100, (ranks, 2 * ranks, COLUMNS))
        given += rows.sum(0)
        if jax.process_index() == jax.process_count() - 1:
            time.sleep(SLEEP_S)
        spread = meshes.spread(mesh, rows.astype(np.float32))
        parts, report = jax.block_until_ready(call(spread))
        add(got, parts)
        late += shared(report.missing_contributions)
        deferred += shared(report.deferred)
    if mode != "exact":
        add(got, drain(spread))
    error = max(
        np.abs(part - given[2 * rank : 2 * rank + 2]).max()
        for rank, part in got.items()
    )
    shares = f"{late / CALLS:.5f} {deferred / CALLS:.5f}"
    print("conserved", mode, error, shares, flush=True)


def add(got: dict[int, np.ndarray], parts: Any) -> None:
    """Adds the parts of this process to the totals, by rank."""
    a, b = meshes.rows_here(parts["a"]), meshes.rows_here(parts["b"])
    for rank in a:
        both = np.concatenate([a[rank], b[rank]], axis=1).astype(np.float64)
        got[rank] = got.get(rank, 0.0) + both


def shared(x: jax.Array) -> float:
    """Returns a statistic, which the devices of a process share."""
    return float(next(iter(meshes.rows_here(x).values())))


def gather(mesh: jax.sharding.Mesh) -> None:
    """Every bit of every dtype arrives, also from a rank that is late."""
    ranks = jax.device_count()
    random = np.random.default_rng(2)
    dtypes = ("float32", "bfloat16", "float64", "int8", "bool", "int32")
    call = meshes.mapped(mesh, lambda tree: jo.all_gather(tree, "dp", name="gathered"))
    wrong, seen = 0, []
    for _ in range(CALLS):
        sent = {
            dtype: random.integers(0, 256, (ranks, 800), np.uint8) for dtype in dtypes
        }
        rows = {
            dtype: row % 2 == 1
            if dtype == "bool"
            else np.ascontiguousarray(row).view(jnp.dtype(dtype))
            for dtype, row in sent.items()
        }
        if jax.process_index() == jax.process_count() - 1:
            time.sleep(SLEEP_S)
        gathered = call({k: meshes.spread(mesh, v) for k, v in rows.items()})
        for dtype in dtypes:
            for whole in meshes.rows_here(gathered[dtype]).values():
                wrong += whole.tobytes() != rows[dtype].tobytes()
                seen.append(whole)
    per_device = len(seen) // len(meshes.rows_here(gathered["int8"]))
    print("gathered", meshes.digest(*seen[:per_device]), flush=True)
    print("wrong", wrong, flush=True)


with jo.init():
    found = np.array(jax.devices())
    if ORDER == "mixed":
        found = np.concatenate([found[::2], found[1::2][::-1]])
    mesh = jax.sharding.Mesh(found, ("dp",))
    for each in ("exact", "bounded", "agreed"):
        scatter(mesh, each)
    gather(mesh)
