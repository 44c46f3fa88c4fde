"""The roll call: all processes of a job meet before JAX connects them.

If a process is missing, JAX ends those that wait for it, without a list. Here the host
of JAX's service, process 0 or a coordinator, listens at its address until all have
come, tells each of them which are missing, and leaves the address to JAX. A process
that belongs to another job, or that has the number of another one, is refused, and
learns why. The roll call has no secrets: a stranger could at most delay the start, as
at JAX's own service.
"""

import contextlib
import dataclasses
import json
import logging
import math
import os
import selectors
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from jax_optireduce._errors import RendezvousError

_log = logging.getLogger("jax_optireduce")

# First bytes of a process's line. JAX's service ends a connection that begins so.
_GREETING = b"jax_optireduce roll call "

# Longest line of a process, and one read of an answer, in bytes.
# Chosen: a line has four short fields, and a list of 1,000 processes 8,192 bytes.
_LINE_BYTES_MAX = 512
_ANSWER_BYTES = 1 << 16

# Largest number of connections without a line. The oldest one is closed beyond it.
# Chosen: far from the usual limit of open files, 1,024; a process sends its line at
# once.
_SILENT_MAX = 256

# Largest number of refusals that an error lists. Chosen: a few show the mistake.
_REFUSALS_MAX = 8

# The number of a coordinator (`tools/coordinator.py`), which is no process of the job.
_COORDINATOR = -1

# Time between two attempts to reach the host, in seconds. Chosen: short for a user.
_RETRY_S = 0.1

# Longest wait for the first answer of a host, in seconds. Chosen: it answers a line at
# once, in milliseconds; JAX's service at its address might not.
_ANSWER_S = 10.0

# Longest search of a host for another one, in seconds.
# Chosen: one on this host answers in milliseconds.
_SEARCH_S = 1.0


@dataclasses.dataclass(frozen=True)
class _Job:
    """A job, as one of its processes, or its coordinator, knows it.

    Attributes:
      coordinator_address: "address:port" of the host.
      num_processes: number of processes.
      process_id: index of this one, or `_COORDINATOR`.
      host: 0, or `_COORDINATOR`.
    """

    coordinator_address: str
    num_processes: int
    process_id: int
    host: int = 0


class _Arrival(NamedTuple):
    """A process, by its own account."""

    process: int
    processes: int
    pid: int
    host: str

    def __str__(self) -> str:
        return f"{_name(self.process)} (pid {self.pid} on host {self.host})"


class _News(NamedTuple):
    """The state of the roll call.

    Attributes:
      missing: processes that have never come.
      gone: those that came and have ended, or have given up.
      refusals: why others were refused.
    """

    missing: Sequence[int] = ()
    gone: Sequence[int] = ()
    refusals: Sequence[str] = ()

    def complete(self) -> bool:
        return not self.missing and not self.gone


def _name(process: int) -> str:
    return "the coordinator" if process == _COORDINATOR else f"process {process}"


def hold(
    coordinator_address: str,
    num_processes: int,
    process_id: int,
    timeout_s: float,
    *,
    has_coordinator: bool = False,
) -> None:
    """Returns when every process of the job has come.

    Args:
      coordinator_address: "address:port" of the host.
      num_processes: number of processes.
      process_id: index of this process.
      timeout_s: longest wait, in seconds.
      has_coordinator: whether the host is a program of its own, which calls `host`;
        otherwise it is process 0.

    Raises:
      RendezvousError: processes are missing; it names them. Or this process does not
        fit to the host; it names the difference.
      OSError: process 0, as the host, cannot open more files.
    """
    host = _COORDINATOR if has_coordinator else 0
    job = _Job(coordinator_address, num_processes, process_id, host)
    # JAX itself listens there by default.
    every = f"[::]:{coordinator_address.rpartition(':')[2]}"
    bind_address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", every)
    end = time.monotonic() + timeout_s
    if job.process_id == job.host:
        _search_other_process_0(job)
        news = _listen(job, bind_address, end)
    else:
        news = _report(job, end)
    if not news.complete():
        raise RendezvousError(_describe_absent(job, news, timeout_s))


def host(bind_address: str, num_processes: int) -> None:
    """Returns when every process of the job has come to this program, a coordinator.

    It waits without a limit, and logs a line when it listens.

    Args:
      bind_address: "address:port" at which it listens.
      num_processes: number of processes.

    Raises:
      RendezvousError: it cannot listen there.
      OSError: it cannot open more files.
    """
    job = _Job(bind_address, num_processes, _COORDINATOR, _COORDINATOR)
    with listen(bind_address) as listener, _Meeting(job, listener) as meeting:
        _log.info("waiting for %d processes at %s", num_processes, bind_address)
        meeting.hold(math.inf)


def listen(bind_address: str) -> socket.socket:
    """Returns a socket at which this program, a coordinator, listens.

    Raises:
      RendezvousError: it cannot listen there.
    """
    job = _Job(bind_address, 0, _COORDINATOR, _COORDINATOR)
    with contextlib.suppress(OSError, ValueError), connect(bind_address, _SEARCH_S):
        raise _cannot_listen(job, bind_address, "another program listens there")
    return _listener(job, bind_address)


def connect(address: str, limit_s: float) -> socket.socket:
    """Returns a connection to "address:port".

    Raises:
      OSError: no program accepts it within `limit_s` seconds.
      ValueError: the address has no port.
    """
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), limit_s)


def _describe_absent(job: _Job, news: _News, timeout_s: float) -> str:
    """Returns the error about processes that are not there."""
    absent = news.missing or news.gone
    _, _, port = job.coordinator_address.rpartition(":")
    if _COORDINATOR in absent:
        return (
            f"the coordinator did not answer at {job.coordinator_address} within "
            f"{timeout_s:g} s. Start python -m jax_optireduce coordinator --ranks "
            f"{job.num_processes} --port {port} there; its TCP port must be open."
        )
    ranks = ", ".join(map(str, absent))
    facts = "".join(f" {text}" for text in _facts(news))
    of_host = "COORDINATOR_ADDRESS" if job.host == 0 else "OPTIREDUCE_COORDINATOR"
    return (
        f"process{'es' if len(absent) > 1 else ''} {ranks} of {job.num_processes} "
        f"did not come to {job.coordinator_address} within {timeout_s:g} s.{facts} "
        f"Start every process, with this JAX_{of_host}, "
        f"JAX_NUM_PROCESSES={job.num_processes} and a JAX_PROCESS_ID of its own, "
        "and let each call jax_optireduce.init(); its TCP port must be open. If "
        "one needs longer to start, set JAX_OPTIREDUCE_RENDEZVOUS_TIMEOUT_S."
    )


def _facts(news: _News) -> list[str]:
    """Returns sentences about processes that came, and are not there."""
    ended = [
        f"Process {process} came, and ended before all others had come."
        for process in news.gone
    ]
    return ended + [f"Refused: {text}" for text in news.refusals]


def _search_other_process_0(job: _Job) -> None:
    """Raises if another process 0 holds the roll call: both could listen."""
    address = job.coordinator_address
    with contextlib.suppress(OSError, ValueError), connect(address, _SEARCH_S) as found:
        _follow(found, job, time.monotonic() + _SEARCH_S)


def _listen(job: _Job, bind_address: str, end: float) -> _News:
    """Waits as the host."""
    with _listener(job, bind_address) as listener, _Meeting(job, listener) as meeting:
        return meeting.hold(end)


def _listener(job: _Job, bind_address: str) -> socket.socket:
    host, _, port = bind_address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # JAX's service does so, too: a launcher may have reserved the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6 and host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, int(port)))
        listener.listen(socket.SOMAXCONN)
        listener.setblocking(False)
    except (OSError, ValueError, OverflowError) as error:
        raise _cannot_listen(job, bind_address, error) from error
    return listener


def _cannot_listen(job: _Job, bind_address: str, reason: object) -> RendezvousError:
    remedy = (
        "JAX_COORDINATOR_ADDRESS must be an address of its host, with a free port "
        "(JAX_COORDINATOR_BIND_ADDRESS, if set, too)."
        if job.host == 0
        else "Give --bind an address of this host, and --port a free TCP port."
    )
    return RendezvousError(
        f"{_name(job.host)} cannot listen at {bind_address}: {reason}. {remedy}"
    )


class _Meeting(contextlib.ExitStack):
    """The roll call at its host: its connections, and the missing processes."""

    def __init__(self, job: _Job, listener: socket.socket) -> None:
        super().__init__()
        self._missing = set(range(job.num_processes)) - {job.process_id}
        self._gone: set[int] = set()
        self._own = _arrival(job)
        self._listener = listener
        self._selector = self.enter_context(selectors.DefaultSelector())
        self._selector.register(listener, selectors.EVENT_READ, listener)
        # The connections in the order of their arrival.
        self._silent: dict[socket.socket, None] = {}
        self._came: dict[socket.socket, _Arrival] = {}
        self._refusals: list[str] = []
        self.callback(self._close_all)

    def hold(self, end: float) -> _News:
        """Waits until all processes have come, or until `end`; returns the news."""
        while (left_s := end - time.monotonic()) > 0:
            if self._news().complete():
                break
            self._handle_events(None if left_s == math.inf else left_s)
        self._tell()
        return self._news()

    def _news(self) -> _News:
        return _News(sorted(self._missing), sorted(self._gone), self._refusals)

    def _tell(self) -> None:
        """Sends the news to the processes that have come, and to no stranger."""
        for connection in self._came:
            _send(connection, self._news()._asdict())

    def _handle_events(self, limit_s: float | None) -> None:
        """Waits for connections and lines, and handles them."""
        for key, _ in self._selector.select(limit_s):
            # An earlier event may have closed the connection of this one.
            if key.data is self._listener:
                self._accept()
            elif key.data in self._silent:
                self._read(key.data)
            elif key.data in self._came:
                self._leave(key.data)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # It is closed.
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, connection)
        self._silent[connection] = None
        if len(self._silent) > _SILENT_MAX:
            self._close(next(iter(self._silent)))

    def _read(self, connection: socket.socket) -> None:
        """Reads the line of a process, which is then expected to be silent."""
        arrival = _read_arrival(connection)
        if arrival is None:  # A stranger.
            self._close(connection)
            return
        refusal = self._refusal(arrival)
        if refusal:
            _log.warning("roll call: %s", refusal)
            self._refusals = [*self._refusals, refusal][-_REFUSALS_MAX:]
            _send(connection, {"refusal": refusal})
            self._close(connection)
            return
        del self._silent[connection]
        self._came[connection] = arrival
        self._missing.discard(arrival.process)
        self._gone.discard(arrival.process)
        self._tell()

    def _leave(self, connection: socket.socket) -> None:
        """Handles the end of a process that has come: it may come again."""
        self._gone.add(self._came[connection].process)
        self._close(connection)
        self._tell()

    def _refusal(self, arrival: _Arrival) -> str:
        """Returns why a process does not belong to this job, or ""."""
        count = self._own.processes
        if arrival.processes != count:
            too = ", and as --ranks" if self._own.process == _COORDINATOR else ""
            return (
                f"{arrival} expects {arrival.processes} processes and {self._own} "
                f"expects {count}; set the same JAX_NUM_PROCESSES everywhere{too}."
            )
        for other in (self._own, *self._came.values()):
            if other.process == arrival.process:
                return (
                    f"{arrival} has the number of another one, pid {other.pid} on host "
                    f"{other.host}; give each of the {count} processes a "
                    "JAX_PROCESS_ID of its own."
                )
        if arrival.process not in self._missing | self._gone:
            return f"{arrival} is none of the processes 0 to {count - 1}."
        return ""

    def _close(self, connection: socket.socket) -> None:
        self._silent.pop(connection, None)
        self._came.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()

    def _close_all(self) -> None:
        for connection in [*self._silent, *self._came]:
            self._close(connection)


def _arrival(job: _Job) -> _Arrival:
    return _Arrival(
        job.process_id, job.num_processes, os.getpid(), socket.gethostname()
    )


def _greeting(job: _Job) -> bytes:
    return _GREETING + json.dumps(_arrival(job)).encode()


def _read_arrival(connection: socket.socket) -> _Arrival | None:
    """Returns the account that a process has sent; None for a stranger."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        line = connection.recv(_LINE_BYTES_MAX)
        if line.startswith(_GREETING):
            process, processes, pid, host = json.loads(line.removeprefix(_GREETING))
            return _Arrival(int(process), int(processes), int(pid), str(host))
    return None


def _send(connection: socket.socket, answer: object) -> None:
    with contextlib.suppress(OSError):
        connection.send(json.dumps(answer).encode() + b"\n")


def _report(job: _Job, end: float) -> _News:
    """Waits as another process."""
    while True:
        left_s = end - time.monotonic()
        if left_s <= 0:
            return _News([job.host])
        try:
            connection = connect(job.coordinator_address, left_s)
            break
        except (OSError, ValueError):
            time.sleep(min(_RETRY_S, left_s))
    with connection:
        return _follow(connection, job, end)


def _follow(connection: socket.socket, job: _Job, end: float) -> _News:
    """Returns the last news that the host sends.

    Raises:
      RendezvousError: the host refuses this process.
    """
    news = _News()
    rest = b""
    # JAX's service may run already: this process comes late, was started again, or
    # process 0 has not called `init`. Its answer is none of ours, and JAX knows more.
    with contextlib.suppress(OSError, ValueError, TypeError):
        connection.sendall(_greeting(job))
        limit_s = min(end, time.monotonic() + _ANSWER_S)
        while (left_s := limit_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            data = connection.recv(_ANSWER_BYTES)
            limit_s = end
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for answer in map(json.loads, lines):
                if "refusal" in answer:
                    raise RendezvousError(
                        f"{_name(job.host)} at {job.coordinator_address} refuses this "
                        f"process: {answer['refusal']}"
                    )
                news = _News(**answer)
            if lines and news.complete():
                break
    return news
