"""The status sockets of processes: finding them, and asking them."""

import contextlib
import dataclasses
import enum
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jax_optireduce._session import status

# It equals that of ffi/runtime/status_report.h.
_VERSION = 1

# Longest time for an answer, in seconds.
# Chosen: a process waits for its network threads for 1 s, and a busy host is slow.
ANSWER_S = 3.0


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
        text = status.read(path, ANSWER_S)
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


def _describe_process(pid: int) -> str:
    """Returns the reason for which a process does not answer, if the kernel has it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "; no process has this number here: a process that it forked may live on"
    # Source: proc_pid_stat(5), the field "state".
    return "; it is stopped (SIGSTOP)" if fields[0] in {"T", "t"} else ""
