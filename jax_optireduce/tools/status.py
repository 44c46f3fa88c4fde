"""`python -m jax_optireduce status`: shows the ranks of the jobs on this host.

Each process of a job answers on a UNIX socket that only its user can open, on a
thread that needs neither Python nor XLA: also while its program waits in a
collective, or computes. A stopped process (SIGSTOP) cannot answer; its row says
so, and shows the state that the other ranks see.

    python -m jax_optireduce status           all jobs of this user on this host
    python -m jax_optireduce status PATH...   these sockets, or of a folder
    ssh HOST python -m jax_optireduce status  the ranks on another host
    python -m jax_optireduce status --coordinator HOST:PORT   all ranks of a job

All ranks of a job with a coordinator report to it each second. Ranks that are
away, failed, silent, awaited by others or behind come first, in words.

Rates are those of the last second (--interval). Loss is the share of the sent
segments that were retransmitted, and late the share of the received ones that
came after their stage had closed, since `init`. `behind` is the number of calls
that a peer has not entered and this rank has.

A job with many ranks is summed up: one line for those in the same state. Jobs
without a living process are one line, the last; the next job of this user
removes their sockets.

Exit codes: 0, every process of the living jobs has answered, or reported; 1,
there is none, or a process of one has not answered or is dead; 2, usage error.
"""

import argparse
import concurrent.futures
import json
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_optireduce import _phrases
from jax_optireduce._session import reports, status
from jax_optireduce.tools import arguments, job_status, screen, status_sockets
from jax_optireduce.tools.status_sockets import Answer, State

# Chosen: peers that fit on a screen; those that stand out come first.
_PEERS_MAX = 16

# Ranks of a job that are shown one by one, each with its peers.
# Chosen: as many as a reader compares.
_RANKS_MAX = 8

# Processes that are asked at the same time.
# Chosen: all of a host; a thread only waits.
_THREADS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this verb to `parser`."""
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "paths",
        nargs="*",
        default=[],
        type=_existing,
        metavar="PATH",
        help="a socket, or a folder with sockets (default: the folders of this user)",
    )
    asked.add_argument(
        "--coordinator",
        type=_address,
        metavar="HOST:PORT",
        help="ask the coordinator of a job, at the address that is the option "
        "`coordinator` of its ranks (default: ask the processes of this host)",
    )
    parser.add_argument(
        "--interval",
        **arguments.seconds(),
        default=1.0,
        help="time over which rates are measured, in seconds; 0: no rates (default 1)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Asks the processes and prints their answers."""
    if args.coordinator is not None:
        return job_status.run(args.coordinator, as_json=args.json)
    answers = _ask(status_sockets.find(args.paths or status.folders()), args.interval)
    jobs = [_job(answers, session) for session in sorted({a.session for a in answers})]
    jobs.sort(key=_is_dead)
    living = [job for job in jobs if not _is_dead(job)]
    found = [rank["state"] for job in living for rank in job["ranks"]]
    ok = bool(found) and {State.ANSWERED, "elsewhere"} >= set(found)
    if args.json:
        print(json.dumps({"ok": ok, "jobs": jobs}, indent=2))
    elif jobs:
        for job in living:
            _print_job(job)
        _print_dead([job for job in jobs if _is_dead(job)])
    else:
        looked = ", ".join(map(str, args.paths or status.folders()))
        print(
            f"status: no job found in {looked}. For the ranks on another host: ssh "
            "HOST python -m jax_optireduce status. For a job with another "
            "XDG_RUNTIME_DIR or TMPDIR: give its folder.",
            file=sys.stderr,
        )
    return 0 if ok else 1


def _address(text: str) -> str:
    try:
        reports.address_beside(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT") from None
    return text


def _existing(path: str) -> Path:
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path!r} is neither a socket nor a folder")
    return Path(path)


def _ask(paths: Sequence[Path], interval_s: float) -> list[Answer]:
    """Asks the processes twice, the second time those that have answered."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        first = [a for a in threads.map(status_sockets.ask, paths) if a is not None]
        answered = [a for a in first if a.state is State.ANSWERED]
        if not interval_s or not answered:
            return first
        time.sleep(interval_s)
        again = threads.map(status_sockets.ask, [a.path for a in answered])
        second = {a.path: a for a in again if a is not None}
    for answer in answered:
        newer = second.get(answer.path)
        if newer is not None and newer.state is State.ANSWERED:
            _add_rates(newer.report, answer.report)
            answer.report = newer.report
    return first


def _add_rates(newer: Mapping[str, Any], older: Mapping[str, Any]) -> None:
    elapsed_s = newer["monotonic_s"] - older["monotonic_s"]
    before = {peer["rank"]: peer for peer in older["peers"]}
    for peer in newer["peers"]:
        if elapsed_s <= 0 or peer["rank"] not in before:
            continue
        for name in ("bytes_sent", "bytes_received"):
            moved = peer[name] - before[peer["rank"]][name]
            peer[f"{name}_per_s"] = moved / elapsed_s


def _job(answers: Iterable[Answer], session: str) -> dict[str, Any]:
    """Returns one session: its ranks in order, those without a socket included."""
    own = [answer for answer in answers if answer.session == session]
    reports = [a.report for a in own if a.state is State.ANSWERED]
    ranks = [_rank(answer, reports) for answer in own]
    size = max((report["world_size"] for report in reports), default=0)
    for rank in sorted(set(range(size)) - {answer.rank for answer in own}):
        elsewhere = {"rank": rank, "state": "elsewhere"}
        ranks.append(elsewhere | {"seen_by": _seen_by(rank, reports)})
    ranks.sort(key=lambda rank: rank["rank"])
    return {"session": session, "world_size": size or None, "ranks": ranks}


def _rank(answer: Answer, reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "rank": answer.rank,
        "pid": answer.pid,
        "socket": str(answer.path),
        "state": answer.state.value,
        "reason": answer.reason,
        "seen_by": _seen_by(answer.rank, reports),
    }
    if answer.state is not State.ANSWERED:
        return shown
    for peer in answer.report["peers"]:
        peer.setdefault("bytes_sent_per_s", None)
        peer.setdefault("bytes_received_per_s", None)
        peer["loss"] = _share(peer["segments_retransmitted"], peer["segments_sent"])
        peer["late"] = _share(peer["segments_late"], peer["segments_received"])
    named = ("members", "calls_under_way", "calls", "last_ended", "devices", "peers")
    shown |= {name: answer.report[name] for name in named}
    return shown | {"mute_lanes": answer.report["mute_lanes"]}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _seen_by(rank: int, reports: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the state of a rank as the others see it."""
    names = ("state", "heard_ago_s", "calls_behind")
    return [
        {"rank": report["rank"], **{name: peer[name] for name in names}}
        for report in reports
        for peer in report["peers"]
        if peer["rank"] == rank
    ]


def _is_dead(job: Mapping[str, Any]) -> bool:
    return all(rank["state"] == State.DEAD for rank in job["ranks"])


def _print_job(job: Mapping[str, Any]) -> None:
    ranks = job["ranks"]
    answered = [rank for rank in ranks if rank["state"] == State.ANSWERED]
    size = job["world_size"]
    _line(
        f"Job {job['session']}: {len(answered)} of "
        f"{len(ranks) if size is None else size} ranks answer here",
        style="bold",
    )
    elsewhere = [rank for rank in ranks if rank["state"] == "elsewhere"]
    here = [rank for rank in ranks if rank["state"] != "elsewhere"]
    if len(answered) > _RANKS_MAX:
        _print_groups(answered)
        here = [rank for rank in here if rank["state"] != State.ANSWERED]
    for rank in here:
        _print_rank(rank)
    _print_elsewhere(elsewhere)
    screen.show("")


def _print_dead(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Prints one line about the jobs without a living process."""
    if len(jobs) == 1:
        (job,) = jobs
        have = "has" if len(job["ranks"]) == 1 else "have"
        named = _named(job["ranks"])
        _line(f"Job {job['session']}: dead; {named} {have} not closed the session")
    elif jobs:
        count = sum(len(job["ranks"]) for job in jobs)
        _line(
            f"{len(jobs)} jobs are dead; their {count} processes have not closed the "
            "sessions (--json lists them)"
        )


def _named(ranks: Sequence[Mapping[str, Any]]) -> str:
    numbers = [rank["rank"] for rank in ranks]
    return f"rank{'' if len(numbers) == 1 else 's'} {spans(numbers)}"


def _print_groups(ranks: Sequence[Mapping[str, Any]]) -> None:
    """Prints the lines of one rank for all that are in the same state."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for rank in ranks:
        groups.setdefault(_state(rank), []).append(rank)
    for group in sorted(groups.values(), key=len):
        longest = max(group, key=lambda rank: _oldest_s(rank["calls"]))
        _line(f"{_named(group)}, members {spans(longest['members'])}", "bold")
        for line in describe(longest):
            _line(line, indent="  ")
        bad = {
            peer["rank"]: peer["state"]
            for rank in group
            for peer in rank["peers"]
            if peer["state"] != "alive"
        }
        for number, state in sorted(bad.items()):
            _line(f"peer {number} is {state}", indent="  ")
    _line("(status SOCKET shows one rank with its peers, --json all of them)")


def _state(rank: Mapping[str, Any]) -> str:
    """Returns the facts that set ranks apart, as a key."""
    long = [call for call in rank["calls"] if call["age_s"] >= job_status.LONG_CALL_S]
    names = ("collective", "sequence", "waiting_for", "absent")
    facts = [[call[name] for name in names] for call in long]
    devices = [[call["collective"], call["sequence"]] for call in rank["devices"]]
    states = sorted({peer["state"] for peer in rank["peers"]})
    return json.dumps([rank["members"], facts, devices, rank["mute_lanes"], states])


def _oldest_s(calls: Sequence[Mapping[str, Any]]) -> float:
    return max((call["age_s"] for call in calls), default=0.0)


def _print_elsewhere(ranks: Sequence[Mapping[str, Any]]) -> None:
    """Prints ranks without a socket: one line for those that no other misses."""
    missed = [
        rank
        for rank in ranks
        if any(s["state"] != "alive" or s["calls_behind"] for s in rank["seen_by"])
    ]
    for rank in missed[:_RANKS_MAX]:
        _print_rank(rank)
    rest = [rank for rank in ranks if rank not in missed[:_RANKS_MAX]]
    if rest:
        where = (
            "it is on another host, or has ended"
            if len(rest) == 1
            else "they are on other hosts, or have ended"
        )
        _line(f"{_named(rest)}: no socket here; {where}")


def _line(text: str, style: str = "", indent: str = "") -> None:
    """Prints a line, and below it, further to the right, the words beyond its end."""
    lines = textwrap.wrap(
        text,
        screen.WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
    )
    screen.show("\n".join(lines), style)


def _print_rank(rank: Mapping[str, Any]) -> None:
    name = f"rank {rank['rank']}"
    if rank["state"] == "elsewhere":
        _line(f"{name}: no socket here; it is on another host, or has ended")
    elif rank["state"] != State.ANSWERED:
        _line(f"{name}, process {rank['pid']}: {rank['reason']}", "bold red")
    else:
        _line(
            f"{name}, process {rank['pid']}, members {spans(rank['members'])}",
            "bold",
        )
        for line in describe(rank):
            _line(line, indent="  ")
        if rank["peers"]:
            _print_peers(rank["peers"])
        return
    for line in describe_seen(rank["seen_by"]):
        _line(line, indent="  ")


def spans(ranks: Sequence[int]) -> str:
    """Returns ascending ranks as "0-3, 5"."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][-1] == rank - 1:
            found[-1][1:] = [rank]
        else:
            found.append([rank])
    return ", ".join("-".join(map(str, span)) for span in found)


def describe(rank: Mapping[str, Any]) -> list[str]:
    """Returns the lines about the calls of a rank that has answered."""
    lines = [describe_call(call) for call in rank["calls"]]
    more = rank["calls_under_way"] - len(rank["calls"])
    if more:
        lines.append(f"{more} newer calls are under way")
    lines += [
        f"{_phrases.call(call)} waits in this process for the devices of "
        f"{_phrases.ranks(call['missing'])}; {_phrases.ranks(call['started'])} started "
        f"it {_phrases.seconds(call['age_s'])} ago"
        for call in rank["devices"]
    ]
    last = rank["last_ended"]
    if not lines and last is None:
        lines.append("no call yet")
    elif not lines:
        ago = _phrases.seconds(last["ended_ago_s"])
        end = "ended" if last["state"] == "done" else "failed"
        lines.append(f"no call under way; {_phrases.call(last)} {end} {ago} ago")
    if rank["mute_lanes"]:
        numbers = ", ".join(map(str, rank["mute_lanes"]))
        lines.append(f"no answer from lane {numbers}: the host is overloaded")
    return lines


def describe_call(call: Mapping[str, Any]) -> str:
    """Returns the line about a call under way, with the ranks that it waits for."""
    name = f"{'drain, ' if call['drain'] else ''}{_phrases.call(call)}"
    facts = f"{call['mode']}, {_phrases.size(call['bytes'])}"
    text = f"{name} ({facts}), under way for {_phrases.seconds(call['age_s'])}"
    entered = [rank for rank in call["waiting_for"] if rank not in call["absent"]]
    parts: list[str] = []
    if call["absent"]:
        have = "has" if len(call["absent"]) == 1 else "have"
        absent = _phrases.ranks(call["absent"])
        parts.append(f"{absent}, which {have} not entered {_phrases.call(call)}")
    if entered:
        parts.append(f"the rest of the data of {_phrases.ranks(entered)}")
    return text + (f"; waits for {', and for '.join(parts)}" if parts else "")


def describe_seen(seen_by: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines about a rank without an answer, from the other ranks."""
    lines: list[str] = []
    for seen in seen_by[:_PEERS_MAX]:
        heard = seen["heard_ago_s"]
        ago = "never" if heard is None else f"{_phrases.seconds(heard)} ago"
        behind = seen["calls_behind"]
        lines.append(
            f"rank {seen['rank']} sees it: {seen['state']}, heard {ago}, {behind} "
            f"call{'' if behind == 1 else 's'} behind"
        )
    return lines


def _print_peers(peers: Sequence[Mapping[str, Any]]) -> None:
    table = screen.table(
        *("  peer", "state", "heard", "sent/s", "received/s"),
        *("loss", "RTT", "late", "behind"),
    )
    first = sorted(peers, key=_health)[:_PEERS_MAX]
    for peer in sorted(first, key=lambda peer: peer["rank"]):
        table.add_row(
            str(peer["rank"]),
            peer["state"],
            _optional(peer["heard_ago_s"], _age),
            _optional(peer["bytes_sent_per_s"], lambda rate: _phrases.size(int(rate))),
            _optional(
                peer["bytes_received_per_s"], lambda rate: _phrases.size(int(rate))
            ),
            _optional(peer["loss"], _percent),
            _optional(peer["rtt_s"], _phrases.seconds),
            _optional(peer["late"], _percent),
            str(peer["calls_behind"]),
        )
    screen.show(table)
    if len(peers) > _PEERS_MAX:
        rest = len(peers) - _PEERS_MAX
        text = f"{rest} more peers are in better health (--json has all)"
        _line(text, indent="  ")


def _health(peer: Mapping[str, Any]) -> tuple[bool, int, float]:
    """Orders peers: those that stand out come first."""
    alive = peer["state"] == "alive"
    return (alive, -peer["calls_behind"], -(peer["loss"] or 0.0))


def _optional(value: float | None, text: Any) -> str:
    return "-" if value is None else text(value)


def _age(duration_s: float) -> str:
    # Short, for a column.
    return _phrases.seconds(duration_s) if duration_s < 100 else f"{duration_s:.0f} s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
