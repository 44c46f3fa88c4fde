"""The roll call: all processes of a job meet before JAX connects them.

If a process is missing, JAX ends those that wait for it, without a list. Here process 0
listens at the coordinator's address until all have come, tells each of them which are
missing, and leaves the address to JAX. It has no secrets: a stranger could at most
delay the start, as at JAX's own service.
"""

import contextlib
import dataclasses
import json
import os
import selectors
import socket
import time
from collections.abc import Sequence

from jax_optireduce._errors import RendezvousError

# First bytes of a process's line. JAX's service ends a connection that begins so.
_GREETING = b"jax_optireduce roll call "

# Longest line of a process, and one read of an answer, in bytes.
# Chosen: a process sends less than 40, and a list of 1,000 less than 8,192.
_LINE_BYTES_MAX = 64
_ANSWER_BYTES = 1 << 16

# Time between two attempts to reach process 0, in seconds. Chosen: short for a user.
_RETRY_S = 0.1


@dataclasses.dataclass(frozen=True)
class _Job:
    coordinator_address: str
    num_processes: int
    process_id: int


def hold(
    coordinator_address: str, num_processes: int, process_id: int, timeout_s: float
) -> None:
    """Returns when every process of the job has come.

    Args:
      coordinator_address: "address:port" of process 0.
      num_processes: number of processes.
      process_id: index of this process.
      timeout_s: longest wait, in seconds.

    Raises:
      RendezvousError: processes are missing; it names them.
    """
    job = _Job(coordinator_address, num_processes, process_id)
    # As JAX itself.
    every = f"[::]:{coordinator_address.rpartition(':')[2]}"
    bind_address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", every)
    end = time.monotonic() + timeout_s
    if job.process_id == 0:
        missing = _listen(job, bind_address, end)
    else:
        missing = _report(job, end)
    if missing:
        ranks = ", ".join(map(str, missing))
        raise RendezvousError(
            f"process{'es' if len(missing) > 1 else ''} {ranks} of {job.num_processes} "
            f"did not come to {job.coordinator_address} within {timeout_s:g} s. Start "
            "every process, with this JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES="
            f"{job.num_processes} and a JAX_PROCESS_ID of its own, and let each call "
            "jax_optireduce.init(); its TCP port must be open. If one needs longer to "
            "start, set JAX_OPTIREDUCE_RENDEZVOUS_TIMEOUT_S."
        )


def _listen(job: _Job, bind_address: str, end: float) -> list[int]:
    """Waits as process 0; returns the missing processes."""
    missing = set(range(1, job.num_processes))
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listener(bind_address))
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(listener, selectors.EVENT_READ)
        came: list[socket.socket] = []
        while missing and (left_s := end - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                if key.fileobj is listener:
                    accepted = stack.enter_context(listener.accept()[0])
                    accepted.setblocking(False)
                    selector.register(accepted, selectors.EVENT_READ, accepted)
                    continue
                connection: socket.socket = key.data
                selector.unregister(connection)
                process = _process_of(connection)
                if process in missing:
                    missing.discard(process)
                    came.append(connection)
                    _tell(came, sorted(missing))
        _tell(came, sorted(missing))
    return sorted(missing)


def _listener(bind_address: str) -> socket.socket:
    host, _, port = bind_address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # As JAX's service: a launcher may have reserved the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6 and host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, int(port)))
        listener.listen(socket.SOMAXCONN)
    except (OSError, ValueError) as error:
        raise RendezvousError(
            f"process 0 cannot listen at {bind_address}: {error}. "
            "JAX_COORDINATOR_ADDRESS must be an address of its host, with a free port "
            "(JAX_COORDINATOR_BIND_ADDRESS, if set, too)."
        ) from error
    return listener


def _process_of(connection: socket.socket) -> int | None:
    """Returns the number that a process has sent; None for a stranger."""
    with contextlib.suppress(OSError, ValueError):
        line = connection.recv(_LINE_BYTES_MAX)
        if line.startswith(_GREETING):
            return int(line.removeprefix(_GREETING))
    return None


def _tell(connections: Sequence[socket.socket], missing: Sequence[int]) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.send(json.dumps(list(missing)).encode() + b"\n")


def _report(job: _Job, end: float) -> list[int]:
    """Waits as another process; returns the missing processes."""
    host, _, port = job.coordinator_address.rpartition(":")
    while True:
        left_s = end - time.monotonic()
        if left_s <= 0:
            return [0]
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), left_s)
            break
        except (OSError, ValueError):
            time.sleep(min(_RETRY_S, left_s))
    with connection:
        return _follow(connection, job, end)


def _follow(connection: socket.socket, job: _Job, end: float) -> list[int]:
    """Returns the last list of missing processes that process 0 sends."""
    missing: list[int] | None = None
    rest = b""
    try:
        connection.sendall(_GREETING + str(job.process_id).encode())
        while missing != [] and (left_s := end - time.monotonic()) > 0:
            connection.settimeout(left_s)
            data = connection.recv(_ANSWER_BYTES)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                missing = json.loads(lines[-1])
    except TimeoutError:
        pass
    except (OSError, ValueError):
        # JAX's service runs already: this process comes late, or process 0 has not
        # called `init`. JAX knows more.
        return missing or []
    return missing or []
