"""Ends in the way given as argument; prints "waiting" before a call that cannot end."""

import os
import sys
import time

import events
import jax
import meshes
import numpy as np

import jax_optireduce as jo
from jax_optireduce._jax import coordination

HOW = sys.argv[1]

communicator = jo.init()
mesh = meshes.make((jax.device_count(),), ("dp",))
# The arithmetic makes it too expensive for XLA to run inline in the main thread.
program = meshes.mapped(mesh, lambda x: jo.psum(3 * x + 1, "dp", name="call"))
given = meshes.spread(mesh, np.ones((jax.device_count(), 100_000), np.float32))
jax.block_until_ready(program(given))
rank = jax.process_index()

if HOW == "normal":
    jax.block_until_ready(program(given))
elif HOW == "exception":
    if rank == 1:
        raise RuntimeError("rank 1 had enough")
    jax.block_until_ready(program(given))
elif HOW == "exit_in_flight":
    if rank == 0:
        pending = program(given)
        print("waiting", flush=True)
        sys.exit(3)
    time.sleep(3)
elif HOW == "alone":
    if rank == 0:
        pending = program(given)
    else:
        events.wait_for("rank 0 gives up")
        try:
            jax.block_until_ready(program(given))
        except meshes.CALL_ERRORS as error:
            print("error", str(error).splitlines()[0], flush=True)
elif HOW == "error in flight":
    if rank == 1:
        pending = program(given)
        events.wait_for_a_call(communicator)
        raise RuntimeError("rank 1 had enough")
    events.wait_for("rank 1 has ended")
    jax.block_until_ready(program(given))
elif HOW == "abort":
    # An aborted rank may leave data of this call unsent.
    coordination.exchange("before the abort", b"done", 60.0)
    if rank == 1:
        os.abort()
    time.sleep(0.5)  # The end of the session does not reach rank 1.
elif HOW == "interrupt":
    print("waiting", flush=True)
    if rank == 0:
        jax.block_until_ready(program(given))
    time.sleep(1000)
