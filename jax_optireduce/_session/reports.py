"""The reports of the ranks to the coordinator: `status --coordinator` shows them.

A thread of each process sends a line of JSON per second on a connection that stays
open, also while the program waits in a collective. The coordinator keeps the last line
of each rank (`tools/job_reports.py`). A failed connection is tried again later; nothing
is queued, and the session does not depend on it.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jax_optireduce import _phrases
from jax_optireduce._session import process_end, roll_call, status
from jax_optireduce._session.options import Options

# Longest line, in bytes. Chosen: one that waits for 4,000 ranks fits.
LINE_BYTES_MAX = 1 << 16

# The line of a program that asks for the last reports of all ranks.
REQUEST = b"jax_optireduce status\n"

# Time between two reports, and the longest time between two attempts to connect, in
# seconds. Chosen: current for a reader, and without load on a coordinator that is down.
_PERIOD_S = 1.0
_RETRY_MAX_S = 30.0

# Longest wait for the coordinator, or for the network threads, in seconds.
# Chosen: longer than the way over an ocean, and than that of `ffi/runtime`, 1 s.
_LIMIT_S = 3.0

# Longest wait of `end` for the last report, in seconds. Chosen: short at an exit.
_END_S = 1.0

# The fields of a report and their types; the other fields are lists.
#   rank: the place of the process in the job, as the numbers in the lists
#   replica: its name; "" for a process that is none
#   session: number of the session; -1 while the process waits for its place in one
#   step: of the program at its last `admit`
#   state: of `_STATES`; reason: of the end
#   participation: 1 - `missing_contributions` of the last calls
#   skipped: share of skipped ones among the last calls; `calls_skipped` counts all
#   call, call_age_s: the oldest call under way; "" without one
#   waiting_for, absent: as in the flight record, of this call
#   calls_behind: [rank, calls] of the others that are behind this rank
_FIELDS: dict[str, tuple[type, ...]] = {
    "rank": (int,),
    "replica": (str,),
    "life": (int,),
    "pid": (int,),
    "host": (str,),
    "session": (int,),
    "step": (int, type(None)),
    "state": (str,),
    "reason": (str,),
    "live_processes": (int, type(None)),
    "participation": (float, int, type(None)),
    "skipped": (float, int, type(None)),
    "calls_completed": (int,),
    "calls_failed": (int,),
    "calls_skipped": (int,),
    "call": (str,),
    "call_age_s": (float, int),
}
_STATES = ("running", "ended", "failed")
_RANK_LISTS = ("waiting_for", "absent")

Report = dict[str, Any]


class Source(Protocol):
    """The interface of the communicator of this process."""

    rank: int
    place: int
    options: Options

    def places_of(self, ranks: Sequence[int]) -> list[int]: ...
    def counters(self) -> dict[str, int]: ...
    def collective_totals(self) -> dict[str, dict[str, Any]]: ...


def address_beside(coordinator: str) -> str:
    """Returns the address for reports: the port after that of the coordinator."""
    host, _, port = coordinator.rpartition(":")
    return f"{host}:{int(port) + 1}"


def parse(line: bytes) -> Report | None:
    """Returns the report in a line; None if it has none."""
    try:
        report = json.loads(line)
        fits = (
            report.keys() == {*_FIELDS, *_RANK_LISTS, "calls_behind"}
            and report["state"] in _STATES
            and report["replica"].isprintable()
            and all(isinstance(report[name], of) for name, of in _FIELDS.items())
            and all(type(x) is int for name in _RANK_LISTS for x in report[name])
            and all(type(x) is type(y) is int for x, y in report["calls_behind"])
        )
    except (AttributeError, RecursionError, TypeError, ValueError):
        return None
    return report if fits else None


class Reporter:
    """The thread that reports about this process, in all its sessions."""

    def __init__(
        self,
        source: Source,
        place: Callable[[], tuple[int, int | None]],
        coordinator: str,
        life: int,
    ) -> None:
        """Starts the thread.

        Args:
          source: the communicator.
          place: returns the fields `session` and `step`.
          coordinator: "address:port" of the coordinator.
          life: of this process.
        """
        self._source = source
        self._place = place
        self._address = address_beside(coordinator)
        self._life = life
        self._end = {"state": "running", "reason": ""}
        self._over = threading.Event()
        self._connection: socket.socket | None = None
        # The sums at the last report, of its session: calls, missing contributions,
        # skipped calls.
        self._sums = {-1: (0, 0.0, 0)}
        self._shares: dict[str, float | None] = {"participation": None, "skipped": None}
        # The calls by which each rank was behind at the last report.
        self._behind: dict[int, int] = {}
        self._thread = threading.Thread(
            target=self._run, name="jax_optireduce reports", daemon=True
        )
        self._thread.start()

    def end(self, reason: str) -> None:
        """Sends the last report, and waits for it for a limited time."""
        state = "failed" if process_end.ends_by_error() else "ended"
        self._end = {"state": state, "reason": reason}
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def leave_to_parent(self) -> None:
        """In a forked process: closes its copy of the connection."""
        self._disconnect()

    def _run(self) -> None:
        pause_s = 0.0
        over = False
        while not over:
            over = self._over.wait(pause_s)
            pause_s = _PERIOD_S
            try:
                self._send(self._report())
            except LookupError:
                pass  # A new session has begun, with other ranks.
            except (OSError, ValueError):
                self._disconnect()
                pause_s = min(max(2 * pause_s, _PERIOD_S), _RETRY_MAX_S)
        self._disconnect()

    def _send(self, report: Report) -> None:
        if self._connection is None:
            self._connection = roll_call.connect(self._address, _LIMIT_S)
        # After a timeout a part of a line may be on its way: it is not used again.
        self._connection.sendall(json.dumps(report).encode() + b"\n")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _report(self) -> Report:
        source, places = self._source, self._source.places_of
        counters = source.counters()
        seen = status.read_own(source.rank, _LIMIT_S)
        call = next(iter(seen.get("calls", ())), None)
        session, step = self._place()
        return {
            "rank": source.place,
            "replica": source.options.replica,
            "life": self._life,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "session": session,
            "step": step,
            **self._end,
            "live_processes": counters.get("live_processes"),
            **self._find_shares(session, counters.get("calls_skipped", 0)),
            "calls_completed": counters.get("calls_completed", 0),
            "calls_failed": counters.get("calls_failed", 0),
            "calls_skipped": counters.get("calls_skipped", 0),
            "call": "" if call is None else _phrases.call(call),
            "call_age_s": 0.0 if call is None else call["age_s"],
            "waiting_for": [] if call is None else places(call["waiting_for"]),
            "absent": [] if call is None else places(call["absent"]),
            "calls_behind": self._find_behind(seen),
        }

    def _find_shares(self, session: int, skipped: int) -> dict[str, float | None]:
        """Returns the shares of the calls that have ended since the last report.

        Without such a call they are as before, and None before the first one.

        Args:
          session: its number; its counters begin at 0.
          skipped: the counter `calls_skipped`.
        """
        totals = self._source.collective_totals().values()
        calls = sum(sum(of["calls"]) for of in totals)
        sums = (calls, sum(of["missing_contributions"] for of in totals), skipped)
        before = self._sums.get(session, (0, 0.0, 0))
        new, missing, passed = (x - y for x, y in zip(sums, before, strict=True))
        if new > 0:
            self._sums = {session: sums}
            self._shares = {
                "participation": 1 - missing / new,
                "skipped": passed / (new + passed),
            }
        return self._shares

    def _find_behind(self, seen: Mapping[str, Any]) -> list[list[int]]:
        """Returns the places that were behind in this report and in the last one."""
        before = self._behind
        peers = seen.get("peers", ())
        places = self._source.places_of([peer["rank"] for peer in peers])
        calls = [peer["calls_behind"] for peer in peers]
        self._behind = dict(zip(places, calls, strict=True))
        both = {p: min(n, before.get(p, 0)) for p, n in self._behind.items()}
        return [[place, calls] for place, calls in both.items() if calls > 0]
