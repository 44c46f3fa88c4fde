"""Exact calls of each dtype, to each of which the last process comes late.

Prints "relayed <segments>".
"""

import time

import jax
import jax.numpy as jnp
import meshes
import numpy as np

import jax_optireduce as jo

DTYPES = ("float32", "float64", "int32", "bfloat16", "float16")
LATE_S = 0.3
ELEMENTS = 400_000

with jo.init() as communicator:
    ranks = jax.device_count()
    mesh = meshes.make((ranks,), ("dp",))
    program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", mode="exact"))
    draw = np.random.default_rng(7)
    for dtype in map(jnp.dtype, DTYPES):
        # Small whole numbers: their sum is exact in any order and in each dtype.
        values = draw.integers(-9, 10, (ranks, ELEMENTS)).astype(dtype)
        given = jax.block_until_ready(meshes.spread(mesh, values))
        if jax.process_index() == ranks - 1:
            time.sleep(LATE_S)
        for row in meshes.rows_here(program(given)).values():
            expected = values.astype(np.float32).sum(axis=0)
            np.testing.assert_array_equal(row.astype(np.float32), expected, dtype.name)
    print("relayed", communicator.counters()["segments_relayed"], flush=True)
