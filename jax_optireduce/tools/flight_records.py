"""Files of flight records, and the cause of a stall that several of them show.

The files of several ranks are put side by side: a call has the same name and number on
all ranks. docs/observability.md describes the fields.
"""

import collections
import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax_optireduce import _phrases
from jax_optireduce._errors import UsageError
from jax_optireduce._session import log_thread
from jax_optireduce.tools import files

# Least difference between the starts of a call on two ranks that is a cause, in
# seconds. Chosen: as long as the clocks of two hosts may differ.
_LATE_S = 1.0

_EXPECTED = (
    "give a file of Communicator.dump_flight_record, or one that the log of a rank "
    "names"
)

_HEAD_FIELDS = {"rank", "world_size", "pid", "reason", "written_unix_s"}
_CALL_FIELDS = {
    *("number", "collective", "sequence", "started_unix_s", "state", "elapsed_s"),
    *("error", "slowest_process", "behind_s", "waiting_for", "absent"),
}


class RecordError(UsageError):
    """A file that is no flight record, or does not fit to the others."""


class Key(NamedTuple):
    """One call, on all ranks."""

    collective: str
    sequence: int

    def __str__(self) -> str:
        """Describes the call."""
        return _phrases.call(self._asdict())


@dataclasses.dataclass
class Record:
    """The flight record of one rank, from one or several files.

    Attributes:
      rank, world_size, pid: from the first lines.
      reasons: of the files that the program has not requested.
      written_unix_s: time of the newest file.
      calls: by name and number, as in the files.
    """

    rank: int
    world_size: int
    pid: int
    reasons: list[str]
    written_unix_s: float
    calls: dict[Key, dict[str, Any]]

    def lacks(self, key: Key, started_unix_s: float) -> bool:
        """Whether this rank had not entered a call when its file was written.

        Args:
          key: the call.
          started_unix_s: its start on the other ranks.
        """
        if key in self.calls or self.written_unix_s < started_unix_s:
            return False
        # The oldest calls of a long run are not in the record.
        oldest = min(self.calls.values(), key=_number, default=None)
        if oldest is None or oldest["number"] == 1:
            return True
        return oldest["started_unix_s"] < started_unix_s

    def oldest_open(self) -> Key | None:
        """Returns the oldest call that is not done."""
        still = [key for key, call in self.calls.items() if call["state"] != "done"]
        return min(still, key=lambda key: _number(self.calls[key]), default=None)

    def last_before(self, started_unix_s: float) -> Key | None:
        """Returns the newest call that started before a time."""
        earlier = [
            key
            for key, call in self.calls.items()
            if call["started_unix_s"] < started_unix_s
        ]
        return max(earlier, key=lambda key: _number(self.calls[key]), default=None)


@dataclasses.dataclass(frozen=True)
class Cause:
    """The cause of the oldest call that has not ended well.

    Attributes:
      kind: "absent": `ranks` have never entered the call; "late": `ranks` have entered
        it long after the others; "mismatch": `ranks` are in another call; "data":
        `ranks` have entered it, and data of them is missing; "failed": an error of the
        call; "reported": a rank has written its record for another reason; "none": all
        calls have ended.
      key: the call; None without one.
      ranks: the ranks that are the cause.
      waiting: the ranks that wait in the call.
      elapsed_s: the longest wait, in seconds.
      text: all this in words.
    """

    kind: str
    text: str
    key: Key | None = None
    ranks: Sequence[int] = ()
    waiting: Sequence[int] = ()
    elapsed_s: float = 0.0


def read_all(paths: Iterable[Path]) -> dict[int, Record]:
    """Reads files, and joins those of one rank.

    Raises:
      RecordError: a file is no flight record, or the files are of several runs.
    """
    records: dict[int, Record] = {}
    for record in sorted(map(read, paths), key=lambda record: record.written_unix_s):
        known = records.setdefault(record.rank, record)
        if known is record:
            continue
        if known.pid != record.pid:
            raise RecordError(
                f"rank {record.rank} has files of two processes, {known.pid} and "
                f"{record.pid}; give the files of one run."
            )
        known.calls |= record.calls
        known.reasons += record.reasons
        known.written_unix_s = record.written_unix_s
    sizes = {record.world_size for record in records.values()}
    if len(sizes) > 1:
        raise RecordError(
            f"the files are of several runs, with {' and '.join(map(str, sizes))} "
            "ranks; give the files of one run."
        )
    return records


def read(path: Path) -> Record:
    """Reads one file.

    Raises:
      UsageError: it cannot be read.
      RecordError: it is no flight record.
    """
    head, calls = read_lines(path, _CALL_FIELDS)
    requested = head["reason"] == log_thread.REQUESTED
    return Record(
        rank=head["rank"],
        world_size=head["world_size"],
        pid=head["pid"],
        reasons=[] if requested else [head["reason"]],
        written_unix_s=head["written_unix_s"],
        calls={Key(call["collective"], call["sequence"]): call for call in calls},
    )


def read_lines(
    path: Path, fields: set[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the first line of a file, and the lines of the calls.

    Args:
      path: the file.
      fields: names that every call must have.

    Raises:
      UsageError: it cannot be read.
      RecordError: it is no flight record.
    """
    lines = files.read_text(path).splitlines()
    if not lines:
        raise RecordError(f"{path} is empty; {_EXPECTED}.")
    head = _parsed(path, 1, lines[0], _HEAD_FIELDS)
    return head, [_parsed(path, n, x, fields) for n, x in enumerate(lines[1:], 2)]


def _parsed(path: Path, number: int, line: str, fields: set[str]) -> dict[str, Any]:
    """Returns one line of a file."""
    try:
        parsed = files.parse_json(line)
    except ValueError as error:
        raise RecordError(
            f"{path}, line {number} is not JSON, or incomplete; {_EXPECTED}."
        ) from error
    missing = fields - parsed.keys() if isinstance(parsed, dict) else fields
    if missing:
        raise RecordError(
            f"{path}, line {number} is no line of a flight record: it has no "
            f"{', '.join(sorted(missing))}; {_EXPECTED}."
        )
    return parsed


def find_cause(records: Mapping[int, Record]) -> Cause:
    """Returns the cause of the oldest call that has not ended well."""
    starts = {
        key: min(
            r.calls[key]["started_unix_s"] for r in records.values() if key in r.calls
        )
        for record in records.values()
        for key, call in record.calls.items()
        if call["state"] != "done"
    }
    if not starts:
        return _without_open_calls(records)
    mismatch = _mismatch(records)
    if mismatch is not None:
        return mismatch
    key = min(starts, key=starts.__getitem__)
    return _cause_of(records, key, starts[key])


def count_slowest(records: Mapping[int, Record]) -> dict[int, float]:
    """Returns the share of the calls in which each rank was the slowest, by rank."""
    counts = collections.Counter(
        call["slowest_process"]
        for record in records.values()
        for call in record.calls.values()
        if call["state"] == "done" and call["slowest_process"] >= 0
    )
    return {rank: n / counts.total() for rank, n in counts.most_common()}


def _without_open_calls(records: Mapping[int, Record]) -> Cause:
    calls = {key for record in records.values() for key in record.calls}
    text = f"all {len(calls)} calls ended"
    slowest = count_slowest(records)
    if slowest:
        rank, share = next(iter(slowest.items()))
        behind_s = statistics.median(
            call["behind_s"]
            for record in records.values()
            for call in record.calls.values()
            if call["slowest_process"] == rank
        )
        text += (
            f"; the slowest rank was {rank} in {100 * share:.0f} % of the calls, "
            f"{_phrases.seconds(behind_s)} after the others (median)"
        )
    by_reason: dict[str, set[int]] = {}
    for record in records.values():
        for reason in record.reasons:
            by_reason.setdefault(reason, set()).add(record.rank)
    reports = [
        f"{_phrases.ranks(ranks)} reported: {reason}"
        for reason, ranks in by_reason.items()
    ]
    kind = "reported" if reports else "none"
    return Cause(kind, "\n".join([text, *reports]))


def _mismatch(records: Mapping[int, Record]) -> Cause | None:
    """Returns the cause if ranks wait in calls that the others have not entered."""
    by_call: dict[Key, list[int]] = {}
    for rank, record in records.items():
        key = record.oldest_open()
        if key is not None:
            by_call.setdefault(key, []).append(rank)
    (common, waiting), *others = sorted(by_call.items(), key=lambda of: -len(of[1]))
    for key, ranks in others:
        alien = all(common not in records[rank].calls for rank in ranks)
        if not alien or any(key in records[rank].calls for rank in waiting):
            continue
        whom = "the others" if len(waiting) > 1 else _phrases.ranks(waiting)
        return Cause(
            "mismatch",
            f"{_phrases.ranks(ranks)} called {key.collective!r} (call {key.sequence}) "
            f"where {whom} called {common.collective!r} (call {common.sequence}). All "
            "ranks must make the same calls: look for a branch that depends on the "
            "rank or on its data",
            key=common,
            ranks=sorted(ranks),
            waiting=sorted(waiting),
            elapsed_s=_longest(records, common),
        )
    return None


def _longest(records: Mapping[int, Record], key: Key) -> float:
    found = [r.calls[key]["elapsed_s"] for r in records.values() if key in r.calls]
    return max(found, default=0.0)


def _cause_of(records: Mapping[int, Record], key: Key, started_unix_s: float) -> Cause:
    """Returns the cause of one call that is not done."""
    entered = {rank: r.calls[key] for rank, r in records.items() if key in r.calls}
    still = {rank: c for rank, c in entered.items() if c["state"] != "done"}
    named = _named_by(still, "absent")
    absent = {rank for rank, r in records.items() if r.lacks(key, started_unix_s)}
    absent |= named - entered.keys()
    late = _late(entered, named, started_unix_s)
    waits = _named_by(still, "waiting_for")
    facts: dict[str, Any] = {
        "key": key,
        "waiting": sorted(still.keys() - late.keys()),
        "elapsed_s": max(call["elapsed_s"] for call in still.values()),
    }
    if absent:
        text = _describe_absent(records, key, absent, still, started_unix_s)
        return Cause("absent", text, ranks=sorted(absent), **facts)
    if late:
        after = f"{_phrases.seconds(max(late.values()))} after the others"
        text = f"{_phrases.ranks(late)} entered {key} {after}"
        return Cause("late", text, ranks=sorted(late), **facts)
    errors = sorted({call["error"] for call in still.values() if call["error"]})
    if waits and not errors:
        text = (
            f"all ranks entered {key}; {_waiting(still)} for data of "
            f"{_phrases.ranks(waits)}. Examine the network between them, and the state "
            "of these processes (python -m jax_optireduce status)"
        )
        return Cause("data", text, ranks=sorted(waits), **facts)
    return Cause("failed", _describe_failure(key, still, errors), **facts)


def _late(
    entered: Mapping[int, Mapping[str, Any]], named: set[int], started_unix_s: float
) -> dict[int, float]:
    """Returns the delay, in seconds, of each rank among `named` that called late."""
    after_s = {
        rank: entered[rank]["started_unix_s"] - started_unix_s
        for rank in named & entered.keys()
    }
    return {rank: s for rank, s in after_s.items() if s > _LATE_S}


def _named_by(calls: Mapping[int, Mapping[str, Any]], field: str) -> set[int]:
    """Returns the ranks in a field of the calls of all ranks."""
    return {rank for call in calls.values() for rank in call[field]}


def _waiting(still: Mapping[int, Mapping[str, Any]]) -> str:
    """Returns "ranks 0 and 1 wait"."""
    return f"{_phrases.ranks(still)} {'waits' if len(still) == 1 else 'wait'}"


def _describe_absent(
    records: Mapping[int, Record],
    key: Key,
    absent: set[int],
    still: Mapping[int, Mapping[str, Any]],
    started_unix_s: float,
) -> str:
    longest_s = max(call["elapsed_s"] for call in still.values())
    pronoun = "it" if len(absent) == 1 else "them"
    failed = all(call["state"] == "failed" for call in still.values())
    if failed:
        wait = f"on {_phrases.ranks(still)} the call failed after"
    else:
        wait = f"{_waiting(still)} for {pronoun} for"
    text = f"{_phrases.ranks(absent)} never entered {key}; {wait} "
    text += _phrases.seconds(longest_s)
    for rank in sorted(absent & records.keys()):
        last = records[rank].last_before(started_unix_s)
        made = "made no call before" if last is None else f"was last in {last}"
        text += f". Rank {rank} {made}"
    return text


def _describe_failure(
    key: Key, still: Mapping[int, Mapping[str, Any]], errors: Sequence[str]
) -> str:
    if not errors:
        return f"{key} is under way on {_phrases.ranks(still)}"
    failed = [rank for rank, call in still.items() if call["error"]]
    first = errors[0].removeprefix("jax_optireduce: ")
    return f"{key} failed on {_phrases.ranks(failed)}: {first}"


def _number(call: Mapping[str, Any]) -> int:
    return call["number"]
