"""Performs the given activity until SIGTERM ends it; prints "ready" before.

Arguments: the activity, and optionally a handler of SIGTERM ("before" or "after" init),
or "preemption": the program uses JAX's preemption service. Rank 0 of "loses the exit"
gets the signal in a hook whose exceptions Python ignores.
"""

import signal
import sys
import threading
import time

import events
import jax
import jax.numpy as jnp
import meshes
import numpy as np
from jax.experimental import multihost_utils

import jax_optireduce as jo

WHAT = sys.argv[1]
PLAN = sys.argv[2] if len(sys.argv) > 2 else ""


def save(number, _frame):
    print("saved after", signal.Signals(number).name, flush=True)
    sys.exit(0)


def signal_this_thread():
    events.wait_for(f"signal {rank}")
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


class Hook:
    """Raises SIGTERM where Python ignores exceptions."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


if PLAN == "before":
    signal.signal(signal.SIGTERM, save)
jo.init()
if PLAN == "after":
    signal.signal(signal.SIGTERM, save)
rank = jax.process_index()
mesh = meshes.make((jax.device_count(),), ("dp",))
# The arithmetic makes it too expensive for XLA to run inline in the main thread.
program = meshes.mapped(mesh, lambda x: jo.psum(3 * x + 1, "dp", name="call"))
given = meshes.spread(mesh, np.ones((jax.device_count(), 100_000), np.float32))
jax.block_until_ready(program(given))
print("ready", flush=True)
try:
    if WHAT == "waits" and rank == 0:
        jax.block_until_ready(program(given))
    elif WHAT == "loses the exit":
        if rank == 0:
            Hook()
        while True:  # Calls may succeed until another thread has closed the session.
            jax.block_until_ready(program(given))
    elif WHAT == "computes":
        endless = jax.jit(
            lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 2, lambda x: x @ x, x)
        )
        pending = endless(jnp.zeros((100, 100)))
        print("computes", flush=True)
        jax.block_until_ready(pending)
    elif WHAT == "dispatched":
        endless = jax.jit(
            lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 2, lambda x: x @ x, x)
        )
        pending = endless(jnp.zeros((100, 100)))
        print("computes", flush=True)
        time.sleep(1000)
    elif WHAT == "trains":
        step = 0
        while PLAN != "preemption" or not (
            multihost_utils.reached_preemption_sync_point(step)
        ):
            step += 1
            jax.block_until_ready(program(given))
            time.sleep(0.05)
            if step == 3:
                print("trains", flush=True)
        print("saved at step", step, flush=True)
    elif WHAT == "sleeps, signalled elsewhere":
        threading.Thread(target=signal_this_thread, daemon=True).start()
        time.sleep(1000)
    else:
        time.sleep(1000)
except meshes.CALL_ERRORS as error:
    print("error", str(error).splitlines()[0], flush=True)
    raise
finally:
    print("cleaned up", flush=True)
