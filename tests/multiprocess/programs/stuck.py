"""After one call, some ranks never make the next one, each in its own way.

Rank 1 holds the GIL, rank 2 stops itself, rank 3 kills itself; the others wait for
them. All begin when the file given as argument exists.
"""

import ctypes
import logging
import os
import signal
import sys
import time
from pathlib import Path

import jax
import meshes
import numpy as np

import jax_optireduce as jo

logging.basicConfig(format="log %(message)s")
jo.init()
mesh = meshes.make((jax.device_count(),), ("dp",))
program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", name="grads"))
given = meshes.spread(mesh, np.ones((jax.device_count(), 5000), np.float32))
jax.block_until_ready(program(given))
print("ready", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.02)
print("goes on", flush=True)
if jax.process_index() == 1:
    ctypes.PyDLL(None).sleep(1000)
if jax.process_index() == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
if jax.process_index() == 3:
    os.kill(os.getpid(), signal.SIGKILL)
jax.block_until_ready(program(given))
