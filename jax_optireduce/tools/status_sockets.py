"""The status sockets of processes: finding them, and asking them."""

import contextlib
import dataclasses
import enum
import json
import os
import socket
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jax_optireduce._session import status

# It equals that of ffi/runtime/status_report.h.
_VERSION = 1

# Longest time for an answer, in seconds.
# Chosen: a process waits for its network threads for 1 s, and a busy host is slow.
ANSWER_S = 3.0

# Chosen: more than the report of a process with the most ranks, in bytes.
_ANSWER_BYTES_MAX = 64 << 20


class State(enum.StrEnum):
    """The outcome of a question."""

    ANSWERED = "answered"
    NO_ANSWER = "no answer"
    DEAD = "dead"


@dataclasses.dataclass
class Answer:
    """The answer of one process.

    Attributes:
      path: its socket.
      session, rank, pid: from the name of the socket.
      state: the outcome.
      report: of the process, as ffi/runtime/status_report.cc writes it; empty without
        an answer.
      reason: of the missing answer, in words.
    """

    path: Path
    session: str
    rank: int
    pid: int
    state: State = State.ANSWERED
    report: dict[str, Any] = dataclasses.field(default_factory=dict)
    reason: str = ""


def find(paths: Iterable[Path]) -> list[Path]:
    """Returns the sockets among these paths, and those in the folders among them.

    Folders of other users are left out: they may create the usual name in a folder
    for temporary files.
    """
    found: list[Path] = []
    for path in paths:
        with contextlib.suppress(OSError):
            facts = path.stat()
            if not stat.S_ISDIR(facts.st_mode):
                found.append(path)
            elif facts.st_uid == os.geteuid() or os.geteuid() == 0:
                found += sorted(path.glob("*.sock"))
    return [path for path in dict.fromkeys(found) if status.NAME.fullmatch(path.name)]


def ask(path: Path) -> Answer | None:
    """Asks a process.

    Args:
      path: a socket that `find` has returned.

    Returns:
      The answer; None if the process has closed the session.
    """
    match = status.NAME.fullmatch(path.name)
    assert match is not None  # noqa: S101 (find returns no other names)
    session, rank, pid = match.groups()
    answer = Answer(path, session, int(rank), int(pid))
    try:
        text = _read(path)
    except FileNotFoundError:
        return None
    except ConnectionRefusedError:
        reason = "dead: it has not closed the session"
        return dataclasses.replace(answer, state=State.DEAD, reason=reason)
    except (TimeoutError, BlockingIOError):
        reason = f"does not answer within {ANSWER_S:g} s{_describe_process(int(pid))}"
        return dataclasses.replace(answer, state=State.NO_ANSWER, reason=reason)
    except OSError as error:
        reason = f"cannot be asked: {error.strerror}"
        return dataclasses.replace(answer, state=State.NO_ANSWER, reason=reason)
    return _parsed(answer, text)


def _parsed(answer: Answer, text: bytes) -> Answer:
    """Returns the answer with its report."""
    try:
        report = json.loads(text.decode(errors="replace"))
        version = report["version"]
    except (ValueError, KeyError, TypeError):
        reason = "does not answer: it belongs to another user, or is closing"
        return dataclasses.replace(answer, state=State.NO_ANSWER, reason=reason)
    if version != _VERSION:
        reason = (
            "answers as another version of jax_optireduce; run status from the "
            "environment of the job"
        )
        return dataclasses.replace(answer, state=State.NO_ANSWER, reason=reason)
    return dataclasses.replace(answer, report=report)


def _read(path: Path) -> bytes:
    """Returns the answer of a process.

    Raises:
      OSError: it does not answer in time, or the socket cannot be opened.
    """
    end = time.monotonic() + ANSWER_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ANSWER_S)
        status.connect(client, path)
        parts: list[bytes] = []
        while sum(map(len, parts)) < _ANSWER_BYTES_MAX:
            # A timeout of 0 would not wait at all.
            client.settimeout(max(end - time.monotonic(), 1e-3))
            part = client.recv(1 << 20)
            if not part:
                break
            parts.append(part)
        return b"".join(parts)


def _describe_process(pid: int) -> str:
    """Returns the reason for which a process does not answer, if the kernel has it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "; no process has this number here: a process that it forked may live on"
    # Source: proc_pid_stat(5), the field "state".
    return "; it is stopped (SIGSTOP)" if fields[0] in {"T", "t"} else ""
