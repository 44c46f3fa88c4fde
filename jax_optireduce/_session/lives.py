"""The lives of a place: a process that is started again is another life of its rank.

The coordination service numbers them. The newest life of a place is the one that
counts: an older one that still runs ends its session.
"""

import dataclasses
import os

from jax_optireduce._jax import coordination
from jax_optireduce._session import plans

_FOLDER = f"{plans.NEWS}/lives"


@dataclasses.dataclass
class _Life:
    """The life of this process; 0 before `begin`: the only state of this module."""

    number: int = 0


_life = _Life()


def begin(rank: int) -> int:
    """Numbers this process among those that were started for its rank, once.

    Returns:
      1 for the first process of the rank, 2 for the second, ...

    Raises:
      RendezvousError: the coordination service failed.
    """
    if _life.number == 0:
        _life.number = coordination.increment(f"{_FOLDER}/{rank}")
    return _life.number


def newest(rank: int) -> int:
    """Returns the number of the newest life of a rank; 0 if it is not known."""
    return int(coordination.entry(f"{_FOLDER}/{rank}") or b"0")


def _leave_to_parent() -> None:
    _life.number = 0


os.register_at_fork(after_in_child=_leave_to_parent)
