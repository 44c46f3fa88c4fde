"""The end of a session and of a process: programs end first, then the processes.

This file prevents three failures. JAX dispatches programs ahead: the last steps of a
script may still run at its end, and all ranks need each other for them. A call that
waits forever for a peer would prevent the exit of the interpreter, so the communicator
is closed after a limited time, before JAX waits for its programs. With
`jax_enable_recoverability`, JAX's barrier at exit lets process 0 end first, and with it
the coordination service, which aborts all other processes, so process 0 waits here for
the others, except for dead ones, unless a coordinator has the service.
"""

import atexit
import contextlib
import dataclasses
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax_optireduce import _native
from jax_optireduce._jax import coordination, processes, programs
from jax_optireduce._session import lives, signals

_log = logging.getLogger("jax_optireduce")

# Wait of process 0 after the last announcement of an exit, in seconds.
# Chosen: after its announcement a process disconnects from the coordination service,
# which takes milliseconds, on a busy machine tenths of a second, and is aborted if the
# service ends before that.
_GRACE_S = 0.5

# Time after SIGTERM, in seconds, for process 0 to receive the announcements of the
# others, and the same for the end of JAX, which waits for running programs.
# Chosen: launchers send SIGKILL after 5 s (ours) to 30 s (SLURM, Kubernetes).
_TERMINATION_S = 2.0

# Period of polls for the end of dispatched programs and for announcements, in seconds.
# Chosen: short for a user at the end of a process, and without load on the processor.
_POLL_S = 0.1

# Period of polls for the end of begun calls. Chosen: about the time of a call.
_POLL_BEGUN_S = 0.005

# Exit code of a process that another life of its rank has replaced. Chosen: that of an
# uncaught exception.
_REPLACED_CODE = 1

# Folder of the announcements in the coordination service.
_ANNOUNCEMENTS = "jax_optireduce/exits"


@dataclasses.dataclass(frozen=True)
class PeersAtExit:
    """State of the other ranks at the end of this process's sessions.

    Attributes:
      dead: ranks given up after a silence of `peer_timeout_s`.
      unreached: ranks that have not acknowledged the end of this process's session.
    """

    dead: set[int] = dataclasses.field(default_factory=set)
    unreached: set[int] = dataclasses.field(default_factory=set)


# Ends sessions: with False, after the dispatched programs. See `communicator`.
End = Callable[[bool], PeersAtExit]


@dataclasses.dataclass
class _ExitState:
    """Arrangements for the end of this process: the only state of this module.

    Attributes:
      installed: whether `install` was called.
      shutdown_timeout_s, peer_timeout_s, hosts_service: see `install`.
      tasks: work for a thread that is started by `install`: Python starts none at exit.
    """

    installed: bool = False
    shutdown_timeout_s: float = 0.0
    peer_timeout_s: float = 0.0
    hosts_service: bool = True
    tasks: queue.SimpleQueue[Callable[[], None]] = dataclasses.field(
        default_factory=queue.SimpleQueue
    )


_state = _ExitState()


def install(
    end: End,
    cancel: Callable[[], None],
    shutdown_timeout_s: float,
    peer_timeout_s: float,
    *,
    hosts_service: bool,
) -> None:
    """Arranges the end of this process; only the first call has an effect.

    Args:
      end: ends the session; idempotent.
      cancel: fails the calls under way.
      shutdown_timeout_s: longest wait of process 0 for the others, in seconds.
      peer_timeout_s: the same for ranks that the end of the session has not reached.
      hosts_service: whether process 0 hosts the coordination service, and so ends last.
    """
    _state.shutdown_timeout_s = shutdown_timeout_s
    _state.peer_timeout_s = peer_timeout_s
    _state.hosts_service = hosts_service
    if _state.installed:
        return
    _, world_size = processes.process()
    signals.install(cancel, distributed=world_size > 1)
    _state.installed = True
    threading.Thread(target=_run_tasks, name="jax_optireduce end", daemon=True).start()
    # Handlers run in reverse order, so this handler precedes those of JAX, which was
    # imported above.
    atexit.register(_at_exit, end)


def begin_again(rank: int) -> None:
    """Withdraws the announcement of an earlier life of this rank."""
    coordination.forget(f"{_ANNOUNCEMENTS}/{rank}")


def leave_to_parent() -> None:
    """In a forked process: the end of the session is its parent's."""
    atexit.unregister(_at_exit)
    _state.installed = False
    signals.leave_to_parent()


def ends_by_error() -> bool:
    """Whether this process, or the running block, ends by an error."""
    # The interpreter stores the uncaught error; an interactive one stores every error.
    unhandled = getattr(sys, "last_value", None) if not hasattr(sys, "ps1") else None
    return unhandled is not None or sys.exc_info()[0] is not None


def reason() -> str:
    """Returns the reason for the end of the session, for the errors of the peers."""
    how = "received SIGTERM" if signals.terminated() else "exits"
    return f"its process {how}"


def complete_programs(native: Any, limit_s: float, give_up: Callable[[], None]) -> None:
    """Waits for the end of the dispatched programs and begun calls of this process.

    A time without a call is not the end: a program makes consecutive calls.

    Args:
      native: the native communicator.
      limit_s: longest duration of a call from now on, in seconds.
      give_up: fails all calls, once one has taken longer.
    """
    over, watched = threading.Event(), threading.Event()
    begun_s = time.monotonic()

    def watch() -> None:
        while not over.wait(_POLL_S):
            since_s = time.monotonic() - begun_s
            calls = native.calls_under_way()
            if any(min(call["elapsed_s"], since_s) >= limit_s for call in calls):
                give_up()
                break
        watched.set()

    _state.tasks.put(watch)
    try:
        programs.wait()
        # The other ranks need them, even if this one never calls `end`.
        ended_s = time.monotonic()
        while native.begun_calls_under_way():
            waited_s = time.monotonic() - ended_s
            if waited_s >= limit_s and not native.calls_under_way():
                give_up()  # They wait for a device of this process.
                break
            time.sleep(_POLL_BEGUN_S)
    finally:
        over.set()
        watched.wait()


def describe_given_up(calls: Sequence[Mapping[str, Any]], reason: str) -> str:
    """Returns the line about calls under way at the close of the session."""
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


def _run_tasks() -> None:
    while True:
        _state.tasks.get()()


def _at_exit(end: End) -> None:
    failed = ends_by_error()
    if failed and signals.terminated():
        # A hook, such as an audit hook, may have lost the SystemExit of the signal. The
        # program has then ended by the error of a call instead.
        _native.exit_with(signals.TERMINATED_CODE)
    try:
        peers = end(failed or signals.terminated())
    except BaseException:  # noqa: BLE001 (Ctrl-C or SIGTERM: they do not wait)
        peers = end(True)
    signals.stop_forwarding()
    rank, world_size = processes.process()
    if world_size > 1 and lives.newest(rank) > lives.begin(rank):
        # JAX's service would take the goodbye of this process for that of the life that
        # has replaced it.
        _log.warning(
            "rank %d ends: life %d was replaced by life %d of its rank.",
            rank,
            lives.begin(rank),
            lives.newest(rank),
        )
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(_REPLACED_CODE)
    if world_size > 1 and processes.is_recoverable() and _state.hosts_service:
        _announce_exit(rank, world_size, peers)
    if signals.terminated():
        _native.end_within(_TERMINATION_S)


def _announce_exit(rank: int, world_size: int, peers: PeersAtExit) -> None:
    """Announces the exit; process 0 waits for the announcements of the others."""
    if rank != 0:
        dead = json.dumps(sorted(peers.dead))
        coordination.publish(f"{_ANNOUNCEMENTS}/{rank}", dead.encode())
        return
    limit_s = _state.shutdown_timeout_s
    if signals.terminated():
        limit_s = min(limit_s, _TERMINATION_S)
    begun_s = time.monotonic()
    while (waited_s := time.monotonic() - begun_s) < limit_s:
        gone = find_exited(peers, coordination.published(_ANNOUNCEMENTS))
        if waited_s >= _state.peer_timeout_s:
            # They have died without a word, such as by an abort of JAX.
            gone |= peers.unreached
        if len(gone | {0}) == world_size:
            break
        time.sleep(_POLL_S)
    time.sleep(_GRACE_S)


def find_exited(peers: PeersAtExit, announced: Mapping[str, bytes]) -> set[int]:
    """Returns the processes for which process 0 does not wait.

    An announcement names the ranks that its sender has given up. Process 0 may not have
    detected their death, since its calls may have failed with those of the sender. It
    accepts a named rank only if it did not reach that rank itself: a sender that is cut
    off gives up all others.

    Args:
      peers: of process 0.
      announced: by rank of the sender, as JSON: the ranks that it has given up.
    """
    named = set().union(*map(json.loads, announced.values()))
    return peers.dead | set(map(int, announced)) | named & peers.unreached
