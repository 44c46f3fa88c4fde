"""Gradients that are deferred until a drain, and replicas that are made equal.

Arguments: seconds that the last rank sleeps before each call. Prints

  "conserved <largest error> <share late> <share deferred> <share in flight at the end>"
                     for each mode that defers: the error of the total of all calls
                     and the drain, compared with the contributions of all ranks, in
                     whole numbers
  "agreed <digest>"  of all results of the calls in mode "agreed"
  "bits <digest>"    of parameters after `resync`
"""

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import meshes
import numpy as np

import jax_optireduce as jo

SLEEP_S = float(sys.argv[1])
CALLS = 40


def check_conservation(mesh: jax.sharding.Mesh, mode: str) -> None:
    """No data is lost or added twice: sums of whole numbers are exact."""
    name = f"sums, {mode}"

    def step(tree: Any) -> Any:
        return jo.psum(tree, "dp", mode=mode, name=name, return_stats=True)

    def end(tree: Any) -> Any:
        return jo.drain(tree, "dp", mode=mode, name=name, mean=False)

    random = np.random.default_rng(1)
    call, drain = meshes.mapped(mesh, step), meshes.mapped(mesh, end)
    ranks = jax.device_count()
    given, got, late, carried = 0.0, 0.0, 0.0, 0.0
    totals = []
    for _ in range(CALLS):
        rows = random.integers(-99, 100, (ranks, 50_000)).astype(np.float32)
        given += rows.astype(np.float64).sum(0)
        if jax.process_index() == jax.process_count() - 1:
            time.sleep(SLEEP_S)
        total, report = jax.block_until_ready(call(meshes.spread(mesh, rows)))
        totals.append(own(total))
        got += totals[-1]
        late += own(report.missing_contributions) + own(report.missing_results)
        carried += own(report.deferred)
    got += own(drain(total))
    error = np.abs(got - given).max()
    nothing, report = call(meshes.spread(mesh, np.zeros_like(rows)))
    assert not own(nothing).any(), "something came after the drain"
    shares = late / CALLS, carried / CALLS, own(report.in_flight)
    print("conserved", error, *(f"{share:.5f}" for share in shares), flush=True)
    if mode == "agreed":
        print("agreed", meshes.digest(*totals), flush=True)


def check_resync(mesh: jax.sharding.Mesh) -> None:
    """Differing replicas get equal bits, those of the mean."""
    random = np.random.default_rng(2)
    rows = random.normal(size=(jax.device_count(), 1000)).astype(np.float32)

    def synchronize(own: Any) -> Any:
        tree = {"w": own, "half": own.astype(jnp.bfloat16), "count": jnp.int32(3)}
        return jo.resync(tree, "dp")

    synchronized = meshes.mapped(mesh, synchronize)(meshes.spread(mesh, rows))
    np.testing.assert_allclose(own(synchronized["w"]), rows.mean(0), atol=1e-6)
    assert own(synchronized["count"]) == 3
    print("bits", meshes.digest(own(synchronized["w"]), own(synchronized["half"])))


def own(x: jax.Array) -> np.ndarray:
    """Returns this process's row, in double precision if it is floating."""
    (row,) = meshes.rows_here(x).values()
    return row.astype(np.float64)


with jo.init():
    mesh = meshes.make((jax.device_count(),), ("dp",))
    for mode in ("agreed", "bounded"):
        check_conservation(mesh, mode)
    check_resync(mesh)
