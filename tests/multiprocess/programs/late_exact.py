"""Exact calls, to each of which the last process comes late.

Prints "relayed <segments>".
"""

import time

import jax
import meshes
import numpy as np

import jax_optireduce as jo

CALLS = 3
LATE_S = 0.3
ELEMENTS = 400_000

with jo.init() as communicator:
    ranks = jax.device_count()
    mesh = meshes.make((ranks,), ("dp",))
    program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", mode="exact"))
    draw = np.random.default_rng(7)
    for _ in range(CALLS):
        # Whole numbers: their sum is exact in any order.
        values = draw.integers(-1000, 1000, (ranks, ELEMENTS)).astype(np.float32)
        given = jax.block_until_ready(meshes.spread(mesh, values))
        if jax.process_index() == ranks - 1:
            time.sleep(LATE_S)
        for row in meshes.rows_here(program(given)).values():
            np.testing.assert_array_equal(row, values.sum(axis=0))
    print("relayed", communicator.counters()["segments_relayed"], flush=True)
