"""Lines of the log, through Python's logging, about events of the native side.

One daemon thread waits in the native side, without the GIL, for events: a rank is
slow, has recovered, or was removed; deadlines are too short; much data is late; a call
does not end; this process passes by a call of another rank; a call is not started by
all devices of this process. A removal, a stall and waiting devices also write the
flight record to a file. Closing the communicator ends the thread. The thread has to end
before the interpreter does, so `process_end` closes first.
"""

import contextlib
import itertools
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from jax_optireduce._phrases import call as _call
from jax_optireduce._phrases import ranks as _ranks
from jax_optireduce._phrases import seconds as _seconds
from jax_optireduce._phrases import size as _bytes
from jax_optireduce._session.options import Options

_log = logging.getLogger("jax_optireduce")

# The reason in a file of `Communicator.dump_flight_record`.
REQUESTED = "requested by the program"

# Largest number of files that a process writes without a request.
# Chosen: the first files have the most information, and a loop must not fill a disk.
_DUMPS_MAX = 8

# Longest wait of `LogThread.end` for the thread, in seconds.
# Chosen: sufficient for a handler that writes one line; closing must not wait for a
# blocked handler.
_END_S = 1.0

# Numbers of the files of this process, in all its sessions: the only state of this
# module.
_numbers = itertools.count()


class FlightRecordSource(Protocol):
    """The interface of an object with a flight record: a communicator."""

    rank: int
    world_size: int

    def flight_record(self) -> list[dict[str, Any]]: ...

    def counters(self) -> dict[str, int]: ...


class LogThread:
    """The thread that waits for events of one communicator."""

    def __init__(
        self, native: Any, source: FlightRecordSource, options: Options
    ) -> None:
        """Starts the thread.

        Args:
          native: the native communicator, in which the thread waits.
          source: the public communicator.
          options: of the communicator.
        """
        self._native = native
        self._source = source
        self._options = options
        self._thread = threading.Thread(
            target=self._run, name="jax_optireduce log", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Waits for a limited time until the thread has logged all events.

        The native communicator must be closed.
        """
        if self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _run(self) -> None:
        reported = False
        while (event := self._native.wait_for_event()) is not None:
            try:
                self._log_event(event)
            except Exception:  # noqa: BLE001 (a logging handler may raise anything)
                if not reported:
                    reported = True
                    with contextlib.suppress(Exception):
                        _log.exception(
                            "an event of kind %r was not logged", event["kind"]
                        )

    def _log_event(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "stall":
            line = describe_stall(event)
        elif event["kind"] == "devices":
            line = describe_devices(event)
        elif event["kind"] == "removed":
            peer_timeout_s = self._options.peer_timeout_s
            line = describe_removal(event, self._source.rank, peer_timeout_s)
        elif event["kind"] == "lone call":
            _log.warning("%s", describe_lone_call(event, self._source.rank))
            return
        elif event["kind"] == "short deadline":
            deadline_max_s = self._options.deadline_max_s
            _log.warning("%s", describe_short_deadline(event, deadline_max_s))
            return
        elif event["kind"] == "late share":
            _log.warning("%s", describe_late_share(event, self._options))
            return
        else:
            _log.warning("%s", describe_rank(event))
            return
        _log.warning("%s", f"{line} {self._dump(line)}".rstrip())

    def _dump(self, reason: str) -> str:
        """Writes the flight record to a new file, and describes the outcome."""
        if self._options.stall_timeout_s == 0:
            return ""
        try:
            # Raised if no folder for temporary files is writable.
            folder = Path(self._options.flight_record_dir or tempfile.gettempdir())
            # Before the first open, for which FileExistsError has another meaning.
            folder.mkdir(parents=True, exist_ok=True)
            path = self._write_new(folder, reason)
        except OSError as error:
            return f"The flight record could not be written ({error})."
        if path is None:
            return f"No file was written: a process writes {_DUMPS_MAX} at most."
        return f"The flight record is in {path}."

    def _write_new(self, folder: Path, reason: str) -> Path | None:
        """Writes the record under the next free name, if one remains."""
        for number in itertools.takewhile(lambda n: n < _DUMPS_MAX, _numbers):
            name = f"flight-{self._source.rank}-{os.getpid()}-{number}.jsonl"
            path = folder / f"jax_optireduce-{name}"
            # O_EXCL: in a folder for all users another user may have created the name.
            # Not readable for others: the file contains names and shapes of the
            # program.
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            with contextlib.suppress(FileExistsError):
                with os.fdopen(os.open(path, flags, 0o600), "w") as file:
                    _write(file, self._source, reason)
                return path
        return None


def dump(source: FlightRecordSource, path: str | os.PathLike[str]) -> None:
    """Writes the flight record to a file, which is replaced if it exists.

    A new file is readable by this user only: it has the names of the program.

    Raises:
      OSError: the file cannot be written.
    """
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
    with os.fdopen(os.open(path, flags, 0o600), "w") as file:
        _write(file, source, REQUESTED)


def _write(file: TextIO, source: FlightRecordSource, reason: str) -> None:
    """Writes JSON lines: rank and reason, then one line per call, oldest first."""
    records = source.flight_record()
    head = {
        "rank": source.rank,
        "world_size": source.world_size,
        "pid": os.getpid(),
        "reason": reason,
        "written_unix_s": time.time(),
        "written_monotonic_s": time.monotonic(),
        "records": len(records),
        "counters": source.counters(),
    }
    file.writelines(json.dumps(line) + "\n" for line in (head, *records))


def log_late_data(late: Sequence[tuple[str, int]]) -> None:
    """Logs the data that the end of a session loses, unless after an error.

    Args:
      late: description and bytes of each collective with late data.
    """
    failed = sys.exc_info()[0] is not None or hasattr(sys, "last_value")
    if late and not failed:
        _log.warning("%s", describe_late_data(late))


def describe_late_data(late: Sequence[tuple[str, int]]) -> str:
    """Returns the line about late data that no drain has returned."""
    ordered = sorted(late, key=lambda of: -of[1])
    # Chosen: the collectives that fit on a few lines; most programs have one.
    shown = ", ".join(f"{_bytes(n)} of {which}" for which, n in ordered[:4])
    if len(ordered) > 4:
        shown += f" and {_bytes(sum(n for _, n in ordered[4:]))} of others"
    return (
        f"the session ends with late data that no call or drain has returned: {shown}. "
        f"This data is lost. Call jax_optireduce.drain with the name=, mode= and "
        "wire_format= of these calls before the end, on every rank."
    )


def describe_rank(event: Mapping[str, Any]) -> str:
    """Returns the line about a rank that is slow, or has recovered."""
    rank, name, calls = event["rank"], event["collective"], event["calls"]
    if event["kind"] == "recovered":
        return (
            f"rank {rank} has recovered: {event['waited']} of the last {calls} calls "
            f"of {name!r} waited for it."
        )
    if event["absent"] * 2 > event["waited"]:
        seen = (
            f"none of its data arrived in time in {event['absent']} of the last "
            f"{calls} calls of {name!r}, which took {_seconds(event['elapsed_s'])} "
            "(median)"
        )
    else:
        seen = (
            f"its data came last in {event['waited']} of the last {calls} calls of "
            f"{name!r}, {_seconds(event['behind_s'])} after the others' (median); "
            f"these calls took {_seconds(event['elapsed_s'])} (median)"
        )
    return (
        f"rank {rank} is slow: {seen}. Check its host for other load, too few cores, "
        "slow input and swapping, and its link for loss."
    )


def describe_short_deadline(event: Mapping[str, Any], deadline_max_s: float) -> str:
    """Returns the line about learned deadlines that `deadline_max_s` cuts.

    Args:
      event: the event of the native side.
      deadline_max_s: the option.
    """
    # Two digits, without an exponent.
    suggested_s = float(f"{event['suggested_s']:.2g}")
    return (
        f"calls of {event['collective']!r} end before their data arrives: "
        f"{100 * event['late']:.0f} % of it was late (mean of the last "
        f"{event['calls']} calls). The learned deadline is "
        f"{_seconds(event['needed_s'])}, and deadline_max_s={deadline_max_s:g} cuts "
        "it. If the network needs that time, and not a program that starts late, set "
        f"deadline_max_s={suggested_s:g}, or make buckets smaller (bucket_bytes)."
    )


def describe_late_share(event: Mapping[str, Any], options: Options) -> str:
    """Returns the line about a collective of which much data is late.

    Args:
      event: the event of the native side.
      options: of the communicator.
    """
    if options.deadline_s:
        set_to = f"; deadline_s={options.deadline_s:g}"
        advice = "Set a longer deadline_s, or none, so that the deadline is learned"
    else:
        set_to = ""
        advice = "Look for a slow rank, or a slow link, in this log"
    return (
        f"{100 * event['late']:.0f} % of the data of calls of {event['collective']!r} "
        f"was late (mean of the last {event['calls']} calls{set_to}). Late gradients "
        "slow a training down from a tenth on, and may make it diverge from a quarter "
        f"on. {advice}."
    )


def describe_removal(
    event: Mapping[str, Any], own_rank: int, peer_timeout_s: float
) -> str:
    """Returns the line about ranks that were removed from the session.

    Args:
      event: the event of the native side.
      own_rank: of this process.
      peer_timeout_s: the option.
    """
    ranks, live = event["ranks"], event["live"]
    why = f"after silence for more than {_seconds(peer_timeout_s)} (peer_timeout_s)"
    left = ", or after leaving it"
    if event["path"]:
        why, left = f"although heard all the time: {event['path']}", ""
    back = "A process that is started again takes its place by jax_optireduce.join."
    if own_rank in ranks:
        # The whole slice is removed with this rank.
        mates = [rank for rank in ranks if rank != own_rank]
        along = f"with {_ranks(mates)} " if mates else ""
        return (
            f"this process, rank {own_rank}, was removed from the session {along}"
            f"{why}, as seen by the others; {live} of them continue. All its "
            f"further calls fail. {back}"
        )
    return (
        f"{_ranks(ranks)} removed from the session {why}{left}; {live} ranks "
        "continue, in calls of mode 'bounded'. Data under way may have reached only "
        "some of them, so their parameters may differ slightly: "
        f"jax_optireduce.resync makes them equal. {back}"
    )


def describe_lone_call(event: Mapping[str, Any], own_rank: int) -> str:
    """Returns the line about a call of another rank that this process passes by.

    Args:
      event: the event of the native side.
      own_rank: of this process.
    """
    return (
        f"rank {event['rank']} has waited {_seconds(event['waited_s'])} in "
        f"{event['call']}, which this process, rank {own_rank}, has not made: it has "
        f"gone on to {event['elsewhere']}. Every rank must make the same calls, also "
        f"where one rank alone needs the result. That call fails after "
        f"{_seconds(event['limit_s'])}."
    )


def describe_stall(event: Mapping[str, Any]) -> str:
    """Returns the line about a call that does not end."""
    call = event["call"]
    name = _call(call)
    lasted = _seconds(call["elapsed_s"])
    if call["state"] == "failed":
        error = call["error"].removeprefix("jax_optireduce: ")
        text = f"{name} failed after {lasted}: {error}"
        text += "" if text.endswith((".", "?")) else "."
    else:
        text = f"{name} has been under way for {lasted}{_waited(call)}."
    if event["others"]:
        text += f" {event['others']} more calls are under way."
    if call["absent"]:
        text += " Check that process; the call stays open until it takes part."
    return text


def describe_devices(event: Mapping[str, Any]) -> str:
    """Returns the line about a call that some devices of this process have not made."""
    text = (
        f"{_call(event)} waits in this process: "
        f"{_ranks(event['started'])} started it {_seconds(event['elapsed_s'])} ago, "
        f"{_ranks(event['missing'])} not yet."
    )
    if event["others"]:
        text += f" {event['others']} more calls wait in the same way."
    return f"{text} Every device must make the same calls."


def _waited(call: Mapping[str, Any]) -> str:
    """Describes the ranks for which a call waits."""
    absent, waiting = call["absent"], call["waiting_for"]
    late = [rank for rank in waiting if rank not in absent]
    parts = []
    if absent:
        parts.append(f"{_ranks(absent)}, whose data for this call is missing")
    if late:
        parts.append(f"the rest of the data of {_ranks(late)}")
    return f" and waits for {', and for '.join(parts)}" if parts else ""
