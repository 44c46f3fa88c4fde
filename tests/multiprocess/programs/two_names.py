"""Two bounded names in a step; the last rank is late to its first step.

Arguments: seconds by which it is late, number of steps. Prints for each step "step" and
the share of contributions that each name lacks.
"""

import sys
import time
from typing import Any

import jax
import meshes
import numpy as np

import jax_optireduce as jo

LATE_S, STEPS = float(sys.argv[1]), int(sys.argv[2])


def run(mesh: jax.sharding.Mesh) -> None:
    """Makes the steps, and drains both names."""

    def step(row: Any) -> Any:
        _, of_gradients = jo.psum(
            row, "dp", mode="bounded", name="gradients", return_stats=True
        )
        _, of_loss = jo.psum(
            row[0], "dp", mode="bounded", name="loss", return_stats=True
        )
        return of_gradients.missing_contributions, of_loss.missing_contributions

    def end(row: Any) -> Any:
        gradients = jo.drain(row, "dp", name="gradients", mean=False)
        return gradients, jo.drain(row[0], "dp", name="loss", mean=False)

    rows = meshes.spread(mesh, np.ones((jax.device_count(), 50_000), np.float32))
    call, drain = (
        meshes.mapped(mesh, each).lower(rows).compile() for each in (step, end)
    )
    if jax.process_index() == jax.process_count() - 1:
        time.sleep(LATE_S)
    for _ in range(STEPS):
        told = jax.block_until_ready(call(rows))
        figures = [value for each in told for value in meshes.rows_here(each).values()]
        print("step", *map(float, figures), flush=True)
    jax.block_until_ready(drain(rows))


with jo.init():
    run(meshes.make((jax.device_count(),), ("dp",)))
