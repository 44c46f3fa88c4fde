"""Ctrl-C and SIGTERM, also during waits of the main thread for a device.

Python handles a signal only between two of its instructions, and a program that waits
for a device executes none. So Python also writes the number of SIGINT to a socket that
the native side reads, which cancels the calls under way. JAX's preemption service
catches SIGTERM and only records it: the native side handles the signal first, closes
the session, and ends the process if the main thread does not.
"""

import dataclasses
import logging
import signal
import socket
import sys
import threading
from types import FrameType, TracebackType
from typing import NoReturn

from jax_optireduce import _native
from jax_optireduce._jax import processes

_log = logging.getLogger("jax_optireduce")

# Exit code of a process that a signal ended, less the number of the signal.
# Source: the convention of POSIX shells.
_EXIT_BY_SIGNAL = 128


@dataclasses.dataclass
class _Signals:
    """The installed handling of signals: the only state of this module.

    Attributes:
      wakeup: (reader, writer) of the socket that Python writes signal numbers to.
      terminated: whether SIGTERM ends this process.
    """

    wakeup: tuple[socket.socket, socket.socket] | None = None
    terminated: bool = False


_signals = _Signals()


def install(distributed: bool) -> None:
    """Installs the handling of signals; has an effect in the main thread only.

    Args:
      distributed: whether the process has peers, which must be informed of its end.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _forward_interrupts()
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
    del frame
    _signals.terminated = True
    _native.termination_handled()
    _log.warning("SIGTERM ends this process.")
    raise SystemExit(_EXIT_BY_SIGNAL + number)


def _forward_interrupts() -> None:
    """Forwards SIGINT to the native side, unless the program has a wakeup fd."""
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
    try:
        _native.interrupt_on_signal(reader.fileno())
    except RuntimeError:
        stop_forwarding()
        raise


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
    reader, writer = _signals.wakeup
    _signals.wakeup = None
    if threading.current_thread() is threading.main_thread():
        mine = signal.set_wakeup_fd(-1)
        if mine != writer.fileno():
            signal.set_wakeup_fd(mine)
    _native.interrupt_on_signal(-1)
    reader.close()
    writer.close()
