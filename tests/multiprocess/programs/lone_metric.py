"""Training in which rank 0 alone computes a metric, by a call that waits for all ranks.

Prints "log <line>" for each line of the log, and on rank 0 "error <type> <ranks,
separated by commas> <message>" for the error of that call. The others train on until
they are killed.
"""

import logging
import time

import jax
import meshes
import numpy as np

import jax_optireduce as jo

logging.basicConfig(format="log %(message)s")
with jo.init():
    mesh = meshes.make((jax.device_count(),), ("dp",))
    given = meshes.spread(mesh, np.ones((jax.device_count(), 5000), np.float32))
    train = meshes.mapped(mesh, lambda x: jo.average_gradients(x, "dp", name="grads"))
    metric = meshes.mapped(mesh, lambda x: jo.pmean(x.sum(), "dp", name="metric"))
    for step in range(1_000_000):
        time.sleep(0.02)
        jax.block_until_ready(train(given))
        if step != 10 or jax.process_index() != 0:
            continue
        try:
            with jo.typed_errors():
                jax.block_until_ready(metric(given))
        except jo.CollectiveError as error:
            ranks = ",".join(map(str, error.ranks))
            print(f"error {type(error).__name__} {ranks} {error}", flush=True)
            time.sleep(3600)
