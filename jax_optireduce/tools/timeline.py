"""`python -m jax_optireduce timeline RECORD...`: ranks as one trace for Perfetto.

    python -m jax_optireduce timeline records/*.jsonl -o trace.json

The output is Chrome's trace event format (JSON), which https://ui.perfetto.dev
and chrome://tracing open. Each rank is a process, each collective a thread of
it, each call a slice. Inside a call a slice shows the wait for the slowest
rank, and marks show the arrivals of the data of the slowest ranks.

The ranks are placed by their own clocks (`started_unix_s`): between hosts the
offsets are those of NTP, often some milliseconds. All times within a rank are
exact.

Exit codes: 0, the trace is written; 2, usage error, or a file that is no flight
record or cannot be written.
"""

import argparse
import heapq
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax_optireduce.tools import files, flight_records

# Shortest wait for the slowest rank with a slice of its own, in seconds.
# Chosen: below it, the slice is narrower than a datagram's time to cross a network.
_WAIT_S = 1e-4

_MODE = re.compile(r"\bmode (\w+)")

# Fields of a call that are arguments of its slice.
_ARGUMENTS = (
    "sequence",
    "bytes",
    "missing_contributions",
    "missing_results",
    "retransmitted",
    "late",
    "slowest_process",
    "behind_s",
    "waiting_for",
    "absent",
    "error",
    "description",
)

_FIELDS = {
    *("number", "collective", "state"),
    *("started_unix_s", "started_monotonic_s", "elapsed_s"),
    *_ARGUMENTS,
}


class Record(NamedTuple):
    """The flight record of one process.

    Attributes:
      rank: of the process.
      pid: its number on its host.
      calls: as `Communicator.flight_record` returns them, oldest first.
    """

    rank: int
    pid: int
    calls: list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this verb to `parser`."""
    parser.add_argument(
        "records",
        nargs="+",
        type=Path,
        metavar="RECORD",
        help="a file of Communicator.dump_flight_record, or of a stall; of any ranks",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("trace.json"),
        help="the trace to write (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Reads the files and writes the trace.

    Raises:
      UsageError: a file is no flight record, or the trace cannot be written.
    """
    records = merged(read(path) for path in args.records)
    files.write_text(args.output, json.dumps(trace_events(records)))
    calls = sum(len(record.calls) for record in records)
    print(
        f"{args.output}: {calls} calls of {len(records)} processes; open it at "
        "https://ui.perfetto.dev"
    )
    return 0


def read(path: Path) -> Record:
    """Reads the file of a flight record.

    Raises:
      UsageError: it cannot be read, or is no flight record.
    """
    head, calls = flight_records.read_lines(path, _FIELDS)
    return Record(head["rank"], head["pid"], calls)


def merged(records: Iterable[Record]) -> list[Record]:
    """Joins the records of each process, which may overlap; in the order of the ranks.

    The last file of a process has the last state of a call.
    """
    by_process: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}
    for record in records:
        calls = by_process.setdefault((record.rank, record.pid), {})
        for call in record.calls:
            known = calls.get(call["number"])
            if known is None or known["state"] == "under way":
                calls[call["number"]] = call
    return [
        Record(rank, pid, [calls[number] for number in sorted(calls)])
        for (rank, pid), calls in sorted(by_process.items())
    ]


def trace_events(records: Sequence[Record]) -> dict[str, Any]:
    """Returns the trace as an object of JSON; times are in microseconds."""
    # The system may set the clock of a host: one offset for all calls of a process.
    offsets_s = [_clock_offset_s(record) for record in records]
    starts = [
        call["started_monotonic_s"] + offset_s
        for record, offset_s in zip(records, offsets_s, strict=True)
        for call in record.calls
    ]
    origin_s = min(starts, default=0.0)
    events: list[dict[str, Any]] = []
    for process, (record, offset_s) in enumerate(zip(records, offsets_s, strict=True)):
        events += _process_events(process, record, offset_s - origin_s)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"origin_unix_s": origin_s},
    }


def _clock_offset_s(record: Record) -> float:
    """Returns the difference of the two clocks at the last call."""
    if not record.calls:
        return 0.0
    return record.calls[-1]["started_unix_s"] - record.calls[-1]["started_monotonic_s"]


def _process_events(
    process: int, record: Record, offset_s: float
) -> Iterator[dict[str, Any]]:
    def named(what: str, name: str, thread: int = 0) -> dict[str, Any]:
        common = {"ph": "M", "pid": process, "tid": thread}
        return {**common, "name": what, "args": {"name": name}}

    yield named("process_name", f"rank {record.rank} (pid {record.pid})")
    threads: dict[tuple[str, int], int] = {}
    for track, call in _on_tracks(record.calls):
        if track not in threads:
            threads[track] = len(threads)
            collective, copy = track
            name = f"{collective} ({copy + 1})" if copy else collective
            yield named("thread_name", name, threads[track])
        common = {"pid": process, "tid": threads[track], "cat": "optireduce"}
        for event in _call_events(call, call["started_monotonic_s"] + offset_s):
            yield {**common, **event}


def _on_tracks(
    calls: Iterable[dict[str, Any]],
) -> Iterator[tuple[tuple[str, int], dict[str, Any]]]:
    """Yields each call with its track: simultaneous calls get different ones."""
    # The free tracks of each collective, and (end, track) of those in use.
    free: dict[str, list[int]] = {}
    used: dict[str, list[tuple[float, int]]] = {}
    for call in sorted(calls, key=lambda call: call["started_monotonic_s"]):
        name, start = call["collective"], call["started_monotonic_s"]
        unused, ends = free.setdefault(name, []), used.setdefault(name, [])
        while ends and ends[0][0] <= start:
            heapq.heappush(unused, heapq.heappop(ends)[1])
        track = heapq.heappop(unused) if unused else len(ends)
        heapq.heappush(ends, (start + call["elapsed_s"], track))
        yield (name, track), call


def _call_events(call: Mapping[str, Any], start_s: float) -> Iterator[dict[str, Any]]:
    """Yields the slice of a call, the slice of its longest wait, and the arrivals."""
    elapsed_s = call["elapsed_s"]
    arguments = {name: call[name] for name in _ARGUMENTS if call[name] not in ("", [])}
    mode = _MODE.search(call["description"])
    arguments["mode"] = mode.group(1) if mode else ""
    arguments["state"] = call["state"]
    end = "" if call["state"] == "done" else f" ({call['state']})"
    name = f"call {call['sequence']}{end}"
    yield _slice(name, start_s, elapsed_s, arguments)
    arrivals = dict(call.get("arrivals", []))
    yield from _waits(call, arrivals, start_s)
    for rank, at_s in arrivals.items():
        if 0 <= at_s <= elapsed_s:
            yield {
                "ph": "i",
                "s": "t",
                "name": f"data of rank {rank}",
                "ts": _microseconds(start_s + at_s),
                "args": {"after_s": at_s},
            }


def _waits(
    call: Mapping[str, Any], arrivals: Mapping[int, float], start_s: float
) -> Iterator[dict[str, Any]]:
    """Yields the slice of the wait for the slowest rank, or for the missing ones."""
    elapsed_s, rank = call["elapsed_s"], call["slowest_process"]
    if call["waiting_for"]:
        ranks = ", ".join(map(str, call["waiting_for"]))
        yield _slice(f"waits for rank {ranks}", start_s, elapsed_s, {})
    elif rank >= 0 and call["behind_s"] >= _WAIT_S:
        # Without an arrival its data did not come before the end.
        end_s = min(arrivals.get(rank, elapsed_s), elapsed_s)
        begin_s = max(end_s - call["behind_s"], 0.0)
        behind = _duration(call["behind_s"])
        name = f"waits for rank {rank} {behind}"
        yield _slice(name, start_s + begin_s, end_s - begin_s, {"rank": rank})


def _slice(
    name: str, start_s: float, elapsed_s: float, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "ts": _microseconds(start_s),
        "dur": _microseconds(elapsed_s),
        "args": dict(arguments),
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
