"""The end of a session and of a process: dispatched programs first, then all leave.

This file prevents three failures. JAX dispatches programs ahead: when a
script is over, its last steps may still run, and need the other ranks, as these need
this one. A call that waits for a peer for ever keeps the interpreter from exiting, so
the communicator is closed after a limited time, before JAX waits for its programs. And
with `jax_enable_recoverability`, JAX's own barrier at exit lets process 0 leave first,
with the coordination service in it, which aborts every process that is still at work,
so process 0 waits for the others here, except for those that are known to be dead.
"""

import atexit
import dataclasses
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax_optireduce import _compat, _native, _signals

# Stay of process 0 after the last goodbye, in seconds.
# Chosen: after its goodbye a process disconnects from the coordination service, which
# takes some milliseconds, and is aborted if the service is gone before that.
_GRACE_S = 0.3

# Time after SIGTERM, in seconds, for process 0 to get the goodbyes of the others, and
# as much for JAX to end, which waits for programs that compute.
# Chosen: launchers send SIGKILL after 5 s (ours) to 30 s (SLURM, Kubernetes).
_TERMINATION_S = 2.0

# Period of the checks for the end of dispatched programs and for goodbyes, in seconds.
# Chosen: unnoticed by a user who waits for the end of a process, and by the processor.
_LOOK_S = 0.1

# Folder of the goodbyes in the coordination service.
_GOODBYES = "jax_optireduce/goodbye"


@dataclasses.dataclass(frozen=True)
class Departure:
    """State of the other ranks at the end of this process's sessions.

    Attributes:
      dead: given up, for they were silent for `peer_timeout_s`.
      unreached: have not acknowledged that this process leaves.
    """

    dead: set[int] = dataclasses.field(default_factory=set)
    unreached: set[int] = dataclasses.field(default_factory=set)


# Ends sessions: with False, after the dispatched programs. See `_communicator`.
End = Callable[[bool], Departure]


@dataclasses.dataclass
class _Arrangement:
    """Arrangements for the end of this process: the only state of this module.

    Attributes:
      installed: whether `install` was called.
      shutdown_timeout_s: longest wait of process 0 for the others.
      tasks: for a thread that was started in time: Python starts none at exit.
    """

    installed: bool = False
    shutdown_timeout_s: float = 0.0
    tasks: queue.SimpleQueue[Callable[[], None]] = dataclasses.field(
        default_factory=queue.SimpleQueue
    )


_arrangement = _Arrangement()


def install(end: End, shutdown_timeout_s: float) -> None:
    """Arranges the end of this process; only the first call has an effect.

    Args:
      end: ends the session; may be called repeatedly.
      shutdown_timeout_s: how long process 0 waits for the others, in seconds.
    """
    _arrangement.shutdown_timeout_s = shutdown_timeout_s
    if _arrangement.installed:
        return
    _, world_size = _compat.process()
    _signals.install(distributed=world_size > 1)
    _arrangement.installed = True
    threading.Thread(target=_work, name="jax_optireduce end", daemon=True).start()
    # Handlers run in reverse order, so this one comes before those that JAX registered
    # when it was imported above.
    atexit.register(_at_exit, end)


def fails() -> bool:
    """Whether this process, or the block that runs, ends by an error."""
    # The interpreter keeps the uncaught error; an interactive one keeps each.
    unhandled = getattr(sys, "last_value", None) if not hasattr(sys, "ps1") else None
    return unhandled is not None or sys.exc_info()[0] is not None


def reason() -> str:
    """Why the session ends with its process, as the errors of the peers say it."""
    how = "received SIGTERM" if _signals.terminated() else "exits"
    return f"its process {how}"


def finish(native: Any, limit_s: float, give_up: Callable[[], None]) -> None:
    """Waits until the programs that this process has dispatched are over.

    A moment without a call is not the end: a program makes one after the other.

    Args:
      native: the native communicator.
      limit_s: how long one call may take from now on, in seconds.
      give_up: fails all calls, for one has taken longer.
    """
    over, watched = threading.Event(), threading.Event()
    begun_s = time.monotonic()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            since_s = time.monotonic() - begun_s
            calls = native.calls_under_way()
            if any(min(call["elapsed_s"], since_s) >= limit_s for call in calls):
                give_up()
                break
        watched.set()

    _arrangement.tasks.put(watch)
    try:
        _compat.wait_for_programs()
    finally:
        over.set()
        watched.wait()


def describe_given_up(calls: Sequence[Mapping[str, Any]], reason: str) -> str:
    """Returns the line about calls that were under way when the session was closed."""
    counts: dict[str, int] = {}
    for call in calls:
        counts[call["collective"]] = counts.get(call["collective"], 0) + 1
    named = ", ".join(
        f"{count} call{'s' * (count > 1)} of {name!r}" for name, count in counts.items()
    )
    waited = sorted({rank for call in calls for rank in call["waiting_for"]})
    peers = f", waiting for rank {', '.join(map(str, waited))}" if waited else ""
    longest_s = max(call["elapsed_s"] for call in calls)
    return f"{named}: given up after {longest_s:.1f} s{peers}: {reason}."


def _work() -> None:
    while True:
        _arrangement.tasks.get()()


def _at_exit(end: End) -> None:
    try:
        departure = end(fails() or _signals.terminated())
    except BaseException:  # noqa: BLE001 (Ctrl-C or SIGTERM: they do not wait)
        departure = end(True)
    _signals.stop_forwarding()
    rank, world_size = _compat.process()
    if world_size > 1 and _compat.is_recoverable():
        _say_goodbye(rank, world_size, departure)
    if _signals.terminated():
        _native.end_within(_TERMINATION_S)


def _say_goodbye(rank: int, world_size: int, departure: Departure) -> None:
    """Process 0 waits for the goodbyes of the others, for a limited time."""
    if rank != 0:
        dead = json.dumps(sorted(departure.dead))
        _compat.publish(f"{_GOODBYES}/{rank}", dead.encode())
        return
    limit_s = _arrangement.shutdown_timeout_s
    if _signals.terminated():
        limit_s = min(limit_s, _TERMINATION_S)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        gone = find_gone(departure, _compat.published(_GOODBYES))
        if len(gone | {0}) == world_size:
            break
        time.sleep(_LOOK_S)
    time.sleep(_GRACE_S)


def find_gone(departure: Departure, goodbyes: Mapping[str, bytes]) -> set[int]:
    """Returns the processes that process 0 does not wait for.

    A goodbye names the processes that its sender has given up. Process 0 need not have
    noticed, as its own calls may have failed with the sender's. It believes that of one
    which it did not reach itself: a sender that is cut off takes all others for dead.

    Args:
      departure: of process 0.
      goodbyes: by the rank that has said it, as JSON: the ranks that it has given up.
    """
    named = set().union(*map(json.loads, goodbyes.values()))
    return departure.dead | set(map(int, goodbyes)) | named & departure.unreached
