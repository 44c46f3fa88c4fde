"""Forks a process after `init`, as data loaders do, and ends it by SIGTERM."""

import multiprocessing
import time

import jax
import meshes
import numpy as np

import jax_optireduce as jo

jo.init()
mesh = meshes.make((jax.device_count(),), ("dp",))
program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", name="call"))
given = meshes.spread(mesh, np.ones((jax.device_count(), 10), np.float32))
jax.block_until_ready(program(given))
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
child.start()
time.sleep(0.2)
child.terminate()
child.join()
print("child", child.exitcode, flush=True)
time.sleep(0.5)  # A session that was closed by mistake would be closed by now.
(row,) = meshes.rows_here(program(given)).values()
print("sum", row[0], flush=True)
