"""The same gradients in every wire format: results, and bytes sent.

Arguments: seconds that the last rank sleeps before each call. Prints

  "sent <format> <UDP payload bytes of the calls>"
  "error <format> <largest error, relative>"  of the total of all calls and a drain,
              compared with the contributions of all ranks
  "single <format> <error of one call>"  the same without the drain: root mean square,
              relative to that of the sums
  "bits <format> <digest>"  of all results of calls in mode "agreed"
  "exact <format> <digest>"  of a sum in mode "exact"
  "nan <format> <NaN elements of a sum with a NaN in one contribution>"
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import meshes
import numpy as np

import jax_optireduce as jo

SLEEP_S = float(sys.argv[1])
CALLS = 20
ELEMENTS = 100_000


def reduce_all(
    name: str, call: Callable[[Any], Any], given: np.ndarray
) -> list[np.ndarray]:
    """Returns this rank's results of all calls, as sums; prints the bytes sent."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    program = meshes.mapped(mesh, call)
    # Compiled, and announced, before the bytes are counted.
    first = own(program(meshes.spread(mesh, np.zeros_like(given[0]))))
    before = jo.stats()["bytes_sent"]
    sums = []
    for rows in given:
        if jax.process_index() == jax.process_count() - 1:
            time.sleep(SLEEP_S)
        sums.append(own(program(meshes.spread(mesh, rows))))
    # The sums of calls that this rank has skipped, where it came late to the first one.
    sums[-1] += first
    print("sent", name, jo.stats()["bytes_sent"] - before, flush=True)
    return sums


def own(x: jax.Array) -> np.ndarray:
    """Returns this process's row in double precision."""
    (row,) = meshes.rows_here(x).values()
    return row.astype(np.float64)


def check_carried(wire_format: str, mode: str, given: np.ndarray) -> None:
    """Checks that a later call returns the rounding errors, and a drain all of them."""
    how = {"mode": mode, "wire_format": wire_format, "name": f"{mode} {wire_format}"}

    def call(x: Any) -> Any:
        return jo.psum(x, "dp", **how)

    def end(x: Any) -> Any:
        return jo.drain(x, "dp", **how, mean=False)

    sums = reduce_all(wire_format, call, given)
    wanted = given.astype(np.float64).sum(1)
    off = np.sqrt(np.square(sums[0] - wanted[0]).mean() / np.square(wanted[0]).mean())
    print("single", wire_format, off, flush=True)
    mesh = meshes.make((jax.device_count(),), ("dp",))
    rest = own(meshes.mapped(mesh, end)(meshes.spread(mesh, given[0])))
    error = np.abs(sum(sums) + rest - wanted.sum(0)).max()
    print("error", wire_format, error / np.abs(wanted.sum(0)).max(), flush=True)
    if mode == "agreed":
        print("bits", wire_format, meshes.digest(*sums), flush=True)


def check_exact(wire_format: str, rows: np.ndarray) -> None:
    """Checks that all ranks hold equal bits, and that NaN and Inf propagate."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    program = meshes.mapped(
        mesh, lambda x: jo.psum(x, "dp", wire_format=wire_format, name=wire_format)
    )
    total = own(program(meshes.spread(mesh, rows)))
    print("exact", wire_format, meshes.digest(total), flush=True)
    rows = rows.copy()
    rows[0, 1234] = np.inf
    total = own(program(meshes.spread(mesh, rows)))
    assert not np.isfinite(total[1234])
    print("nan", wire_format, np.count_nonzero(~np.isfinite(total)), flush=True)


with jo.init():
    shape = (CALLS, jax.device_count(), ELEMENTS)
    given = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    for mode in ("bounded", "agreed"):
        for wire_format in ("float32", "bfloat16", "int8", "float4"):
            check_carried(wire_format, mode, given)
    for wire_format in ("bfloat16", "int8", "float4"):
        check_exact(wire_format, given[0])
