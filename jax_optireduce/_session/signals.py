"""Ctrl-C and SIGTERM, also during waits of the main thread for a device.

Python handles a signal only between two of its instructions, and a main thread that
waits for a device executes none. So Python also writes the number of SIGINT to a socket
that another thread reads, which cancels the calls under way, unless the program has a
handler of its own. JAX's preemption service
catches SIGTERM and only records it: the native side handles the signal first, closes
the session, and ends the process if the main thread does not.
"""

import dataclasses
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NoReturn

from jax_optireduce import _native
from jax_optireduce._jax import processes

_log = logging.getLogger("jax_optireduce")

# Largest number of signals in one read. Chosen: more than come at a time.
_READ_BYTES = 64

# Exit code of a process that SIGTERM ends.
# Source: the convention of POSIX shells, 128 and the number of the signal.
TERMINATED_CODE = 128 + signal.SIGTERM


@dataclasses.dataclass
class _Signals:
    """The installed handling of signals: the only state of this module.

    Attributes:
      wakeup: (reader, writer) of the socket that Python writes signal numbers to.
      watcher: the thread that reads it.
      terminated: whether SIGTERM ends this process.
    """

    wakeup: tuple[socket.socket, socket.socket] | None = None
    watcher: threading.Thread | None = None
    terminated: bool = False


_signals = _Signals()


def install(cancel: Callable[[], None], distributed: bool) -> None:
    """Installs the handling of signals; has an effect in the main thread only.

    Args:
      cancel: fails the calls under way.
      distributed: whether the process has peers, which must be informed of its end.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _forward_interrupts(cancel)
    if distributed:
        _handle_termination()


def terminated() -> bool:
    """Whether SIGTERM ends this process."""
    return _signals.terminated


def _handle_termination() -> None:
    """Lets SIGTERM end the process, unless the program handles it.

    A handler of the program stays in force, and is restored if JAX has replaced it. A
    program that queries JAX's preemption service for the step of its checkpoint
    continues until then, as without this package. JAX receives the signal only in that
    case: otherwise it would wait minutes for other processes at the end of this one.
    """
    present = signal.getsignal(signal.SIGTERM)
    if callable(present):
        _native.handle_termination(present, ends=False)
    elif present is signal.SIG_DFL:
        _native.handle_termination(_terminate, ends=True)
    processes.on_preemption_query(_native.leave_termination)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    _signals.terminated = True
    _native.termination_handled()
    _log.warning("SIGTERM ends this process.")
    raise SystemExit(TERMINATED_CODE)


def _forward_interrupts(cancel: Callable[[], None]) -> None:
    """Lets Ctrl-C cancel calls, unless the program has a wakeup descriptor."""
    reader, writer = socket.socketpair()
    # Python writes in the signal handler, which must not block.
    writer.setblocking(False)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if previous != -1:
        signal.set_wakeup_fd(previous)
        reader.close()
        writer.close()
        return
    _signals.wakeup = (reader, writer)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_error
    _signals.watcher = threading.Thread(
        target=_watch,
        args=(reader, cancel),
        name="jax_optireduce interrupts",
        daemon=True,
    )
    _signals.watcher.start()


def _watch(reader: socket.socket, cancel: Callable[[], None]) -> None:
    """Cancels the calls on each SIGINT that Python's own handler receives."""
    while numbers := reader.recv(_READ_BYTES):
        handler = signal.getsignal(signal.SIGINT)
        if signal.SIGINT in numbers and handler is signal.default_int_handler:
            cancel()


def _show_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Shows an uncaught error, as Python's default hook does.

    The call that Ctrl-C cancels fails before Python handles the signal. If that error
    is uncaught, Python handles the signal during the output of the error, and prints
    only "lost sys.stderr". With a hook in Python the signal is handled here, and both
    are printed.
    """
    sys.__excepthook__(kind, error, trace)


def stop_forwarding() -> None:
    """Restores the handling of SIGINT."""
    if _signals.wakeup is None:
        return
    _, writer = _signals.wakeup
    # A forked process may hold the same socket: its close alone would not end it.
    writer.shutdown(socket.SHUT_RDWR)
    if _signals.watcher is not None:
        _signals.watcher.join()
    _close_wakeup()


def leave_to_parent() -> None:
    """In a forked process: its signals are not those of its parent."""
    if _signals.wakeup is not None:
        _close_wakeup()


def _close_wakeup() -> None:
    assert _signals.wakeup is not None  # noqa: S101 (by its callers)
    reader, writer = _signals.wakeup
    _signals.wakeup, _signals.watcher = None, None
    if threading.current_thread() is threading.main_thread():
        present = signal.set_wakeup_fd(-1)
        if present != writer.fileno():
            signal.set_wakeup_fd(present)
    reader.close()
    writer.close()
