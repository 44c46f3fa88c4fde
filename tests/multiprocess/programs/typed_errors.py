"""The errors of failed calls, caught by type; the last rank causes each of them.

Prints for each case "<case> <type> <ranks> <collective> <sequence> <seconds> <cause>
<is a JaxRuntimeError>", ranks separated by commas. At last that rank kills itself, and
the others end with exit code 75.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import events
import jax
import meshes
import numpy as np

import jax_optireduce as jo
from jax_optireduce._jax import coordination


def call(name: str, mode: str = "exact", size: int = 5000) -> Callable[[], Any]:
    """Returns a compiled call."""
    program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", name=name, mode=mode))
    given = meshes.spread(mesh, np.ones((jax.device_count(), size), np.float32))
    return lambda: jax.block_until_ready(program(given))


def show(case: str, error: jo.CollectiveError) -> None:
    """Prints a line."""
    facts = (
        *(case, type(error).__name__, ",".join(map(str, error.ranks))),
        *(error.collective, error.sequence, f"{error.waited_s:.1f}"),
        *(type(error.__cause__).__name__,),
        isinstance(error, jax.errors.JaxRuntimeError),
    )
    # One write keeps the line whole beside the lines of the log.
    print(" ".join(map(str, facts)) + "\n", end="", flush=True)


def expect(case: str, function: Callable[[], Any]) -> None:
    """Shows the error of the call, which must fail."""
    try:
        with jo.typed_errors():
            function()
    except jo.CollectiveError as error:
        show(case, error)
    else:
        raise AssertionError(f"{case}: no error")


def meet(case: str) -> None:
    """Waits until all ranks are here, and the news of the error have arrived."""
    coordination.exchange(f"typed errors/{case}", b"here", 60.0)
    time.sleep(0.3)


def cancel_the_next_call() -> None:
    events.wait_for_a_call(communicator)
    communicator.cancel("the test wants it")
    events.happens("cancelled")


communicator = jo.init()
mesh = meshes.make((jax.device_count(),), ("dp",))
rank, last = jax.process_index(), jax.process_count() - 1
together = call("together")
together()
expect("disagreement-name", call("other" if rank == last else "some"))
meet("name")
for mode in ("exact", "bounded", "lossy"):
    size = 4000 if rank == last else 5000
    expect(f"disagreement-{mode}", call(f"shape {mode}", mode, size))
    meet(mode)
late = call("late")
late()
if rank == last:
    events.wait_for(*(f"rank {other} has given up" for other in range(last)))
expect("late", late)
events.happens(f"rank {rank} has given up")
meet("late")
if rank == last:
    threading.Thread(target=cancel_the_next_call).start()
else:
    events.wait_for("cancelled")
expect("cancelled", call("cancelled"))
meet("cancelled")
try:
    with jo.typed_errors():
        int("not of a call")
except ValueError as error:
    print("unchanged", type(error).__name__, flush=True)
if rank == last:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    with jo.typed_errors():
        together()
except jo.PeerLost as error:
    show("dead", error)
    raise SystemExit(75) from error
