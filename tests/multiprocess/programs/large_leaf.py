"""One leaf of 100 MB, larger than any bucket, in both modes."""

import time

import jax
import meshes
import numpy as np

import jax_optireduce as jo

ELEMENTS = 25_000_000

with jo.init(deadline_s=60.0):
    mesh = meshes.make((jax.device_count(),), ("dp",))
    values = np.arange(ELEMENTS, dtype=np.float32) % 1000
    rows = np.broadcast_to(values, (jax.device_count(), ELEMENTS))
    given = meshes.spread(mesh, rows)
    for mode, tolerance in (("exact", 0.0), ("lossy", 1e-3)):
        program = meshes.mapped(mesh, lambda x, m=mode: jo.psum(x, "dp", mode=m))
        started = time.monotonic()
        (total,) = meshes.rows_here(program(given)).values()
        print(mode, round(time.monotonic() - started, 2), "s")
        np.testing.assert_allclose(
            total, jax.device_count() * values, rtol=tolerance, atol=tolerance * 100
        )
