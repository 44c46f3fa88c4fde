"""Calls of each mode, whose programs come from JAX's persistent compilation cache.

The argument is its folder.
Prints "found <programs> of <requested>".
"""

import collections
import sys

import jax
import meshes
import numpy as np

import jax_optireduce as jo

MODES = ("exact", "agreed", "bounded", "lossy")

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events: collections.Counter[str] = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))

with jo.init():
    ranks = jax.device_count()
    mesh = meshes.make((ranks,), ("dp",))
    values = np.random.default_rng(7).normal(size=(ranks, 3000)).astype(np.float32)
    for mode in MODES:
        program = meshes.mapped(
            mesh, lambda x, mode=mode: jo.average_gradients(x, "dp", mode=mode)
        )
        for _ in range(2):
            for row in meshes.rows_here(program(meshes.spread(mesh, values))).values():
                np.testing.assert_allclose(row, values.mean(axis=0), atol=1e-5)
    prefix = "/jax/compilation_cache/"
    found = events[prefix + "cache_hits"]
    print(
        "found", found, "of", events[prefix + "compile_requests_use_cache"], flush=True
    )
