"""Rank 0 or a fork of it gets a signal or fails, in the way given as argument.

Ways: "own handler": of the program, for SIGINT; "forked": SIGINT to a forked process;
"forked exception": that ends by an uncaught error; "wakeup before", "wakeup after": the
program sets a wakeup descriptor before `init`, or after it, as asyncio does. Rank 0
prints "failed <number of calls>", "child <exit code>", "received <signals>" and
"status <state of its socket>".
"""

import os
import signal
import socket
import sys
import time

import jax
import meshes
import numpy as np

import jax_optireduce as jo
from jax_optireduce._session import status
from jax_optireduce.tools import status_sockets

HOW = sys.argv[1]
received = []
ours, theirs = socket.socketpair()
theirs.setblocking(False)


def set_wakeup():
    signal.set_wakeup_fd(theirs.fileno())
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))


if HOW == "own handler":
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
elif HOW == "wakeup before":
    set_wakeup()
jo.init()
if HOW == "wakeup after":
    set_wakeup()
mesh = meshes.make((jax.device_count(),), ("dp",))
program = meshes.mapped(mesh, lambda x: jo.psum(3 * x + 1, "dp", name="call"))
given = meshes.spread(mesh, np.ones((jax.device_count(), 100_000), np.float32))
jax.block_until_ready(program(given))
rank = jax.process_index()
pid = 0

if rank == 0 and HOW.startswith("forked"):
    pid = os.fork()
    if pid == 0 and HOW == "forked exception":
        raise RuntimeError("of the child")
    if pid == 0:
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            os._exit(7)
    time.sleep(0.5)  # The child sleeps, or ends.
elif rank == 1:
    # The call of rank 0 is under way when the signal arrives.
    time.sleep(2)

failed = 0
pending = program(given)
if rank == 0:
    time.sleep(0.5)
    if HOW != "forked exception":
        os.kill(pid or os.getpid(), signal.SIGINT)
for _ in range(20):
    try:
        jax.block_until_ready(pending)
    except meshes.CALL_ERRORS as error:
        failed += 1
        print("error", str(error).splitlines()[0], flush=True)
    pending = program(given)
jax.block_until_ready(pending)
print("failed", failed, flush=True)
if rank == 0:
    print("received", received, flush=True)
    if pid:
        print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    if HOW.startswith("wakeup"):
        print("woken", list(ours.recv(10)), flush=True)
    answers = map(status_sockets.ask, status_sockets.find(status.folders()[:1]))
    mine = [found.state.value for found in answers if found and found.rank == 0]
    print("status", *mine, flush=True)
if HOW.startswith("wakeup"):
    jo.shutdown()
    print("wakeup", signal.set_wakeup_fd(-1) == theirs.fileno() or rank, flush=True)
