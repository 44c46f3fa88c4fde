"""The processor time that other programs of this host take from the ranks.

    others = Load()
    ...  # steps
    share = others.since_start()

The kernel counts three times, all in seconds: C, of the ranks on a processor; W, of
their threads in the queues of processors, ready to run; O, of all other programs on the
same cores, and of other virtual machines (steal). Ranks that share cores wait for each
other, so W alone is no sign of other programs; O alone is none either, since a program
on an idle core takes nothing from a rank. Other programs have thus taken at most
min(W, O), and the share taken is

    min(W, O) / (C + min(W, O))

Only the ranks of one host may be measured together.
"""

import os
import time
from pathlib import Path

import numpy as np
from jax.experimental import multihost_utils

# Share taken by other programs above which times are no figures.
# Chosen: a smaller share lengthens a time by less than the transports differ.
BUSY_SHARE = 0.1

# Source: proc_stat(5), the fields of a line "cpuN": user, nice, system and steal. The
# times of interrupts are left out: those of loopback are work of the ranks.
_BUSY_FIELDS = (1, 2, 3, 8)

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Load:
    """Measures from its start; every rank makes the same calls."""

    def __init__(self) -> None:
        """Begins to measure."""
        self._start = _times()

    def since_start(self) -> float | None:
        """Returns the share taken since the start, in [0, 1].

        None if the kernel does not count these times, as in some sandboxes.
        """
        row = (_times() - self._start).astype(np.float32)
        own, waited, busy = multihost_utils.process_allgather(row).reshape(-1, 3).T
        if np.isnan([*own, *waited, *busy]).any():
            return None
        return share_taken(float(own.sum()), float(waited.sum()), float(busy[0]))


def share_taken(own_s: float, waited_s: float, busy_s: float) -> float:
    """Returns the share of the processor time that other programs took.

    Args:
      own_s: C, of all ranks.
      waited_s: W, of all ranks.
      busy_s: time in which the cores ran any program: C + O.
    """
    taken_s = min(waited_s, max(busy_s - own_s, 0.0))
    return taken_s / (own_s + taken_s)


def _times() -> np.ndarray:
    """Returns C and W of this process, and the busy time of the cores; float64 [3]."""
    try:
        waited_ns = 0
        for thread in Path("/proc/self/task").iterdir():
            # Source: sched-stats.rst of Linux: time on a processor, time in a queue.
            waited_ns += int((thread / "schedstat").read_text().split()[1])
        return np.array([time.process_time(), 1e-9 * waited_ns, _busy_s()])
    except (OSError, IndexError, ValueError):
        return np.full(3, np.nan)


def _busy_s() -> float:
    """Returns the busy time of the cores of the launcher, which has started all ranks.

    `launch` gives each rank cores of its own, if there are enough.
    """
    cores = {f"cpu{core}" for core in os.sched_getaffinity(os.getppid())}
    lines = map(str.split, Path("/proc/stat").read_text().splitlines())
    found = [fields for fields in lines if fields and fields[0] in cores]
    ticks = sum(int(fields[at]) for fields in found for at in _BUSY_FIELDS)
    # A sandbox may show a file without times.
    return ticks / _TICKS_PER_S if ticks else np.nan
