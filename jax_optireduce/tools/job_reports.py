"""The reports of all ranks at the coordinator, which answers `status --coordinator`.

The listener is as trusted as JAX's coordination service beside it. The length of a line
and the number of connections that have not reported are bounded, against strangers.
"""

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
import time
from typing import Any

from jax_optireduce._session import reports

# Silence after which a rank is "silent", in seconds. Chosen: five reports.
_SILENT_S = 5.0

# Largest number of replicas whose reports are kept. Chosen: far more than a job has at
# a time; those that are gone are forgotten first.
_REPLICAS_MAX = 4096

# Largest number of connections that have not reported, in addition to the number of
# ranks, which may all come at once. The oldest one is closed beyond it.
# Chosen: more than the tools that ask at the same time.
_STRANGERS_MAX = 64


@dataclasses.dataclass(frozen=True)
class _Last:
    """The last report of a rank, its time (monotonic), and its open connection."""

    report: reports.Report
    at_s: float
    connection: asyncio.StreamWriter | None


def serve(listener: socket.socket, ranks: int | None) -> None:
    """Takes reports and answers questions, on a daemon thread, until the process ends.

    Args:
      listener: of this process.
      ranks: number of processes of the job; None: replicas, of any number.
    """
    board = _Board(ranks)
    threading.Thread(
        target=lambda: asyncio.run(board.serve(listener)),
        name="jax_optireduce reports",
        daemon=True,
    ).start()


class _Board:
    """The last reports, and the connections."""

    def __init__(self, ranks: int | None) -> None:
        self._ranks = ranks
        self._ranks_max = _REPLICAS_MAX if ranks is None else ranks
        self._last: dict[int, _Last] = {}
        # Connections that have not reported, in the order of their arrival.
        self._strangers: dict[asyncio.StreamWriter, None] = {}

    async def serve(self, listener: socket.socket) -> None:
        limit = reports.LINE_BYTES_MAX
        server = await asyncio.start_server(self._talk, sock=listener, limit=limit)
        await server.serve_forever()

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._strangers[writer] = None
        if len(self._strangers) > self._ranks_max + _STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        # ValueError: the line is too long.
        with contextlib.suppress(OSError, ValueError):
            while (line := await reader.readline()).endswith(b"\n"):
                if line == reports.REQUEST:
                    writer.write(json.dumps(self._answer()).encode())
                    break
                if not self._take(reports.parse(line), writer):
                    break
            writer.close()
            await writer.wait_closed()
        self._strangers.pop(writer, None)
        for rank, last in self._last.items():
            if last.connection is writer:
                self._last[rank] = dataclasses.replace(last, connection=None)
        writer.transport.abort()

    def _take(
        self, report: reports.Report | None, writer: asyncio.StreamWriter
    ) -> bool:
        """Keeps a report; returns False for none, and for one of an earlier life."""
        if report is None or not self._has_place(report["rank"]):
            return False
        before = self._last.get(report["rank"])
        if before is not None:
            if before.report["life"] > report["life"]:
                return False
            if before.connection not in (None, writer):
                before.connection.transport.abort()
        self._last[report["rank"]] = _Last(report, time.monotonic(), writer)
        self._strangers.pop(writer, None)
        return True

    def _answer(self) -> dict[str, Any]:
        """Returns the state of every rank, each with its last report if it has one."""
        known = sorted(self._last) if self._ranks is None else range(self._ranks)
        return {"ranks": [self._rank(rank) for rank in known]}

    def _has_place(self, rank: int) -> bool:
        """Whether the report of a rank can be kept; forgets a replica that is gone."""
        if self._ranks is not None:
            return 0 <= rank < self._ranks
        if rank in self._last or len(self._last) < self._ranks_max:
            return True
        gone = [r for r, last in self._last.items() if last.connection is None]
        if gone:
            del self._last[min(gone, key=lambda r: self._last[r].at_s)]
        return bool(gone)

    def _rank(self, rank: int) -> dict[str, Any]:
        last = self._last.get(rank)
        if last is None:
            return {"rank": rank, "state": "missing"}
        ago_s = time.monotonic() - last.at_s
        state = last.report["state"]
        if state == "running" and last.connection is None:
            state = "away"
        elif state == "running" and ago_s > _SILENT_S:
            state = "silent"
        return {**last.report, "state": state, "reported_ago_s": ago_s}
