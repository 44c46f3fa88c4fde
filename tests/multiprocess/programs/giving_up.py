"""One rank ends calls that the others wait in; then all continue.

Argument: the way of ending. Prints "error <message>" for each call that failed,
"waiting" before one that needs a signal or another rank, and "sum <value>" for the last
calls.
"""

import sys
import threading
import time

import events
import jax
import meshes
import numpy as np
from jax import lax

import jax_optireduce as jo

HOW = sys.argv[1]
# Chosen: this many calls take longer than a few cancellations.
CALLS = 600
CANCELS = 8

communicator = jo.init()
mesh = meshes.make((jax.device_count(),), ("dp",))
program = meshes.mapped(mesh, lambda x: jo.psum(3 * x + 1, "dp", name="call"))
given = meshes.spread(mesh, np.ones((jax.device_count(), 20_000), np.float32))
jax.block_until_ready(program(given))
rank = jax.process_index()


failed = threading.Event()


def call(function=program):
    try:
        return jax.block_until_ready(function(given))
    except meshes.CALL_ERRORS as error:
        print("error", str(error).replace("\n", " "), flush=True)
        failed.set()
        return None


def cancel_often():
    for cancels in range(CALLS):
        # One that comes between two calls ends none.
        if cancels >= CANCELS and failed.is_set():
            return
        communicator.cancel("the test wants it")
        time.sleep(0.01)


def say_that_it_waits():
    events.wait_for_a_call(communicator)
    print("waiting", flush=True)


def in_one_device_only(x):
    """The first device of all makes a call that others of its process do not make."""
    here = (lax.axis_index("dp") == 0) | (
        lax.axis_index("dp") >= jax.local_device_count()
    )
    return lax.cond(here, lambda y: jo.psum(y, "dp", name="call"), lambda y: y, x)


if HOW == "cancel":
    canceller = threading.Thread(target=cancel_often)
    if rank == 0:
        canceller.start()
    for _ in range(CALLS):
        call()
        if rank == 0 and canceller.is_alive():
            canceller.join(0.001)
elif HOW == "interrupt":
    if rank == 0:
        threading.Thread(target=say_that_it_waits, daemon=True).start()
        try:
            call()
            time.sleep(1000)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        events.happens("interrupted")
    else:
        # It makes the call after rank 0 has left it.
        events.wait_for("interrupted")
        call()
elif HOW == "device":
    only_some = meshes.mapped(mesh, in_one_device_only)
    call(only_some)
elif HOW == "hang":
    last = jax.process_count() - 1
    if rank == last:
        events.wait_for(
            *(f"the call of rank {other} has failed" for other in range(last))
        )
    call()
    events.happens(f"the call of rank {rank} has failed")
# A call that fails on one rank fails on all.
sums = 0
while sums < 3:
    total = call()
    if total is not None:
        sums += 1
        (row, *_) = meshes.rows_here(total).values()
        print(f"sum {row.mean():.3f}", flush=True)
print("done", flush=True)
