"""Events of a test: its ranks and the test itself wait for them, and not for a time.

An event is a file in the folder of the test (`ranks.happens`), so that it needs neither
a session nor JAX.
"""

import os
import time
from pathlib import Path
from typing import Any

_FOLDER = Path(os.environ["RANKS_FOLDER"])


def happens(name: str) -> None:
    """Lets an event happen, for all processes of the test."""
    (_FOLDER / f"event {name}").touch()


def wait_for(*names: str) -> None:
    """Waits until all these events have happened."""
    while not all((_FOLDER / f"event {name}").exists() for name in names):
        time.sleep(0.01)


def wait_for_a_call(communicator: Any) -> None:
    """Waits until a call of this process is under way."""
    while not communicator._native.calls_under_way():
        time.sleep(0.01)
