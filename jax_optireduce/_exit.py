"""The end of a process: nothing under way, nobody left waiting, no minutes lost.

Three things would go wrong without this file. A call that waits for a peer keeps the
interpreter from exiting, so the communicator is closed before JAX waits for its
programs. Ctrl-C is noticed by Python only between two of its instructions, and a
program that waits for a device executes none, so the signal's number is also written to
a socket that the native side reads. And with `jax_enable_recoverability`, JAX's own
barrier at exit lets process 0 leave first, with the coordination service in it, which
aborts every process that is still at work, so process 0 waits for the others here,
except for those that the session has removed.
"""

import atexit
import dataclasses
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType

import jax

from jax_optireduce import _compat, _native

# How long process 0 stays after the last goodbye, in seconds.
# Chosen: after its goodbye a process disconnects from the coordination service, which
# takes some milliseconds, and is aborted if the service is gone before that.
_GRACE_S = 0.3


@dataclasses.dataclass
class _Arrangement:
    """What is arranged for the end of this process: the only state of this module.

    Attributes:
      installed: whether `install` was called.
      shutdown_timeout_s: how long process 0 waits for the others.
      wakeup: (reader, writer) of the socket that Python writes signal numbers to.
      removed: processes that died: nobody waits for their goodbye.
    """

    installed: bool = False
    shutdown_timeout_s: float = 0.0
    wakeup: tuple[socket.socket, socket.socket] | None = None
    removed: set[int] = dataclasses.field(default_factory=set)


_arrangement = _Arrangement()


def install(close: Callable[[str], None], shutdown_timeout_s: float) -> None:
    """Arranges the end of this process; only the first call has an effect.

    Args:
      close: fails all calls with the reason given to it; may be called repeatedly.
      shutdown_timeout_s: how long process 0 waits for the others, in seconds.
    """
    _arrangement.shutdown_timeout_s = shutdown_timeout_s
    if _arrangement.installed:
        return
    _arrangement.installed = True
    _forward_interrupts()
    # Handlers run in reverse order, so this one comes before those that JAX registered
    # when it was imported above.
    atexit.register(_at_exit, close)


def note_removed(processes: Iterable[int]) -> None:
    """Notes that some processes are dead."""
    _arrangement.removed.update(processes)


def _at_exit(close: Callable[[str], None]) -> None:
    close("its process exits")
    _stop_forwarding()
    rank, world_size = _compat.process()
    if world_size > 1 and jax.config.jax_enable_recoverability:
        _say_goodbye(rank, world_size)


def _say_goodbye(rank: int, world_size: int) -> None:
    """Process 0 waits for the goodbyes of the others, for a limited time."""
    if rank != 0:
        _compat.publish(f"jax_optireduce/goodbye/{rank}", b"1")
        return
    end = time.monotonic() + _arrangement.shutdown_timeout_s
    for peer in set(range(1, world_size)) - _arrangement.removed:
        left_s = max(0.0, end - time.monotonic())
        _compat.wait_for(f"jax_optireduce/goodbye/{peer}", left_s)
    time.sleep(_GRACE_S)


def _forward_interrupts() -> None:
    """Lets the native side see SIGINT, if nobody else listens to signals this way."""
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = socket.socketpair()
    # Python writes from within the signal handler, which must not block.
    writer.setblocking(False)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if previous != -1:
        signal.set_wakeup_fd(previous)
        reader.close()
        writer.close()
        return
    _arrangement.wakeup = (reader, writer)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_error
    _native.interrupt_on_signal(reader.fileno())


def _show_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Shows an error nobody caught, as Python's own hook does.

    The call that Ctrl-C ended fails before Python has noticed the signal. If nobody
    catches that error, Python notices in the middle of showing it, and shows nothing
    but "lost sys.stderr". A hook in Python makes it notice here, and show both.
    """
    sys.__excepthook__(kind, error, trace)


def _stop_forwarding() -> None:
    if _arrangement.wakeup is None:
        return
    reader, writer = _arrangement.wakeup
    _arrangement.wakeup = None
    if threading.current_thread() is threading.main_thread():
        mine = signal.set_wakeup_fd(-1)
        if mine != writer.fileno():
            signal.set_wakeup_fd(mine)
    _native.interrupt_on_signal(-1)
    reader.close()
    writer.close()
