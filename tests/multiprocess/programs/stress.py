"""Twenty independent collectives per step, started in another order by every rank."""

import sys
import time

import jax
import meshes
import numpy as np

import jax_optireduce as jo

COLLECTIVES = 20
STEPS = int(sys.argv[1])

with jo.init():
    mesh = meshes.make((jax.device_count(),), ("dp",))
    rows = np.arange(jax.device_count() * 500, dtype=np.float32)
    rows = rows.reshape(jax.device_count(), 500) % 7

    def step(x: jax.Array) -> list[jax.Array]:
        """Independent for XLA, and large enough for concurrent execution."""
        return [jo.psum((i + 1) * x, "dp", name=f"c{i}") for i in range(COLLECTIVES)]

    program = meshes.mapped(mesh, step)
    given = meshes.spread(mesh, rows)
    started = time.monotonic()
    for number in range(STEPS):
        totals = program(given)
        # No more than this: XLA's CPU client blocks for ever when a program with
        # several devices is dispatched 32 times ahead, with `jax.lax.psum` too.
        if number % 8 == 7:
            jax.block_until_ready(totals)
    for i, total in enumerate(totals):
        for row in meshes.rows_here(total).values():
            np.testing.assert_array_equal(row, (i + 1) * rows.sum(0))
    print("seconds", round(time.monotonic() - started, 2))
