"""The last rank stops itself between two calls, until the test continues it.

Prints "log <line>" for each line of the log.
"""

import logging
import os
import signal

import jax
import meshes
import numpy as np

import jax_optireduce as jo
from jax_optireduce._jax import coordination

logging.basicConfig(format="log %(message)s")
with jo.init():
    mesh = meshes.make((jax.device_count(),), ("dp",))
    program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", name="grads"))
    given = meshes.spread(mesh, np.ones((jax.device_count(), 5000), np.float32))
    jax.block_until_ready(program(given))
    # A rank ends a call before the others have all of its data.
    coordination.exchange("frozen/first call", b"over", 60.0)
    if jax.process_index() == jax.process_count() - 1:
        print("frozen", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    jax.block_until_ready(program(given))
