"""`status --coordinator`: all ranks of a job, by their reports to its coordinator."""

import collections
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jax_optireduce import _phrases
from jax_optireduce._session import reports, roll_call
from jax_optireduce.tools import screen

# Shortest duration of a call that sets a rank apart from others, in seconds.
# Chosen: much longer than usual calls.
LONG_CALL_S = 1.0

# Longest wait for the coordinator, in seconds. Chosen: it answers in milliseconds.
_LIMIT_S = 10.0

# Chosen: more than the longest reports of the most ranks, in bytes.
_ANSWER_BYTES_MAX = 1 << 30

# Share of skipped calls from which a rank counts as behind.
# Source: docs/deadlines.md: late gradients slow a training down from a tenth on.
_SKIPPED_MAX = 0.1

# Ranks about which words are shown. Chosen: they fit on a screen.
_DESCRIBED_MAX = 16

# The facts that set ranks apart, in the order in which the ranks are shown, before all
# others.
_UNUSUAL = (
    "away",
    "failed",
    "silent",
    "missing",
    "waited for",
    "out",
    "in call",
    "behind",
)


def run(coordinator: str, *, as_json: bool) -> int:
    """Asks a coordinator and prints its answer; returns the exit code."""
    address = reports.address_beside(coordinator)
    try:
        ranks = _ask(address)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(
            f"status: no coordinator answers at {address}, the port after that of "
            f"{coordinator} ({error}). Give the option coordinator of the job; both "
            "TCP ports must be open.",
            file=sys.stderr,
        )
        return 1
    for rank in ranks:
        rank["unusual"] = _unusual(rank, ranks)
    ranks.sort(key=_urgency)
    states = [rank["state"] for rank in ranks]
    ok = "running" in states and {"running", "ended"} >= set(states)
    if as_json:
        print(json.dumps({"ok": ok, "ranks": ranks}, indent=2))
    else:
        _print(ranks)
    return 0 if ok else 1


def _ask(address: str) -> list[dict[str, Any]]:
    with roll_call.connect(address, _LIMIT_S) as connection:
        connection.sendall(reports.REQUEST)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            return json.loads(answer.read(_ANSWER_BYTES_MAX))["ranks"]


def _unusual(
    rank: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Returns the facts that set a rank apart, in words, in the order of `_UNUSUAL`."""
    found: dict[str, str] = {}
    ago = _phrases.seconds(rank.get("reported_ago_s", 0.0))
    if rank["state"] == "missing":
        found["missing"] = "has not reported yet"
    elif rank["state"] == "away":
        found["away"] = f"away for {ago}: its process or its connection has broken off"
    elif rank["state"] == "failed":
        found["failed"] = f"failed {ago} ago: {rank['reason']}, after an error"
    elif rank["state"] == "silent":
        found["silent"] = (
            f"silent for {ago}: it is stopped, holds the GIL, or its host does not "
            "answer"
        )
    running = [other for other in ranks if other["state"] == "running"]
    waiting = [
        other
        for other in running
        if other["call_age_s"] >= LONG_CALL_S and rank["rank"] in other["waiting_for"]
    ]
    if waiting:
        found["waited for"] = _describe_waited(rank["rank"], waiting, ranks)
    if rank["state"] != "running":
        return found
    if rank["session"] < 0:
        found["out"] = "waits until the others admit it"
    if rank["call_age_s"] >= LONG_CALL_S:
        awaited = rank["waiting_for"]
        found["in call"] = (
            f"in {rank['call']} for {_phrases.seconds(rank['call_age_s'])}"
        )
        if awaited:
            found["in call"] += f", waits for {_names(awaited, ranks)}"
    if behind := _calls_behind(rank, running):
        found["behind"] = f"{behind} call{'s' if behind > 1 else ''} behind the others"
    elif (rank["skipped"] or 0.0) > _SKIPPED_MAX:
        found["behind"] = f"skips {_percent(rank['skipped'])} of the calls"
    return found


def _names(numbers: Sequence[int], ranks: Sequence[Mapping[str, Any]]) -> str:
    """Returns the words for some ranks; those of replicas have their names."""
    named = {rank["rank"]: str(rank.get("replica", "")) for rank in ranks}
    names = [named.get(number, "") for number in numbers]
    return _phrases.replicas(names) if all(names) else _phrases.ranks(numbers)


def _describe_waited(
    rank: int,
    waiting: Sequence[Mapping[str, Any]],
    ranks: Sequence[Mapping[str, Any]],
) -> str:
    """Returns the words about a rank for which others wait."""
    names = _names([other["rank"] for other in waiting], ranks)
    waits = "waits" if len(waiting) == 1 else "wait"
    call = waiting[0]["call"]
    if rank in waiting[0]["absent"]:
        return f"{names} {waits} for it in {call}, which it has not entered"
    return f"{names} {waits} for the rest of its data in {call}"


def _calls_behind(rank: Mapping[str, Any], running: Sequence[Mapping[str, Any]]) -> int:
    """Returns the calls that every other rank of its session has entered before it."""
    seen = [
        dict(map(tuple, other["calls_behind"])).get(rank["rank"], 0)
        for other in running
        if other["session"] == rank["session"] and other is not rank
    ]
    return min(seen, default=0)


def _urgency(rank: Mapping[str, Any]) -> tuple[int, int]:
    order = (*_UNUSUAL, "running", "ended")
    return order.index(next(iter(rank["unusual"]), rank["state"])), rank["rank"]


def _print(ranks: Sequence[Mapping[str, Any]]) -> None:
    states = collections.Counter(rank["state"] for rank in ranks)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    replicas = any(rank.get("replica") for rank in ranks)
    kind = "replica" if replicas else "rank"
    screen.show(f"{len(ranks)} {kind}s: {counts}", "bold")
    unusual = [rank for rank in ranks if rank["unusual"]]
    for rank in unusual[:_DESCRIBED_MAX]:
        where = f" on {rank['host']}, process {rank['pid']}" if "pid" in rank else ""
        name = _names([rank["rank"]], ranks)
        line = f"{name}{where}: {'; '.join(rank['unusual'].values())}"
        # A stranger may have sent the names.
        screen.show(line if line.isprintable() else ascii(line))
    if len(unusual) > _DESCRIBED_MAX:
        more = len(unusual) - _DESCRIBED_MAX
        screen.show(f"(and {more} more; --json has all)")
    table = screen.table(
        *(kind, "state", "life", "session", "step", "live", "calls"),
        *("participation", "skipped"),
    )
    for rank in ranks:
        table.add_row(*_cells(rank))
    screen.show(table)


def _cells(rank: Mapping[str, Any]) -> list[str]:
    names = ("life", "session", "step", "live_processes", "calls_completed")
    shares = ("participation", "skipped")
    return [
        *(rank.get("replica") or str(rank["rank"]), rank["state"]),
        *(_number(rank.get(name)) for name in names),
        *(_percent(rank.get(name)) for name in shares),
    ]


def _number(value: int | None) -> str:
    return "-" if value is None or value < 0 else str(value)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
