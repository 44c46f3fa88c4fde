"""Ctrl-C while `python -m jax_optireduce` imports JAX, which takes seconds.

Without this module Python would show the traceback of the import.
"""

import os
import signal
from types import FrameType

# Source: the convention of POSIX shells, 128 and the number of the signal.
_EXIT_CODE = 128 + signal.SIGINT


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    os._exit(_EXIT_CODE)


def end_silently() -> None:
    """Lets Ctrl-C end the process at once, until `raise_again`."""
    # A process in the background may ignore the signal.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt, if `end_silently` has changed that."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
