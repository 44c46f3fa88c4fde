"""Ends with steps in flight on all ranks but the first, in the way given as argument.

Arguments: the way of ending ("script", "function", "shutdown", "with", "thread";
"set_mesh": as a script, with a mesh for all of it); the mode. Rank 0 reads the result
occasionally, as programs that print their loss do; the others never wait, so that they
have dispatched all steps when rank 0 is in the first ones.
"""

import contextlib
import sys
import threading
import time

import jax
import meshes
import numpy as np

import jax_optireduce as jo

HOW, MODE = sys.argv[1:]
# Fewer than 32: with that many programs of a device under way, XLA's CPU client blocks
# the next one on a thread of the pool that runs them. With several devices and few
# cores no thread is left, and the program hangs, with `lax.pmean` as well.
STEPS = 24

communicator = jo.init()
mesh = meshes.make((jax.device_count(),), ("dp",))
if HOW == "set_mesh":
    jax.set_mesh(mesh)
program = meshes.mapped(
    mesh, lambda x: jo.pmean(0.5 * x + 0.5, "dp", mode=MODE, name="step")
)
given = meshes.spread(mesh, np.ones((jax.device_count(), 100_000), np.float32))


def train():
    x = given
    for step in range(STEPS):
        x = program(x)
        if jax.process_index() == 0 and step % 10 == 0:
            time.sleep(0.1)
            row, *_ = meshes.rows_here(x).values()
            print("step", step, row[0], flush=True)
    if jax.process_index() == 0:
        row, *_ = meshes.rows_here(x).values()
        print("last", row[0], flush=True)
    return x


with communicator if HOW == "with" else contextlib.nullcontext():
    if HOW == "function":
        train()  # No variable holds a result.
    elif HOW == "thread":
        thread = threading.Thread(target=lambda: results.append(train()))
        results = []
        thread.start()
        thread.join()
    else:
        x = train()
if HOW == "shutdown":
    jo.shutdown()
