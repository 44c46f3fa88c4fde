"""Runs a program in several real processes, which meet on loopback.

Each rank writes into a file of its own. After any failure all outputs are shown; no
process outlives the test.
"""

import contextlib
import dataclasses
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import jax_optireduce
from jax_optireduce.tools import launch

_PROGRAMS = Path(__file__).parent / "programs"
_FORK_SERVER = Path(__file__).with_name("fork_server.py")
_COMMAND_LINE = Path(jax_optireduce.__file__).with_name("__main__.py")

# Only a hang takes longer. Chosen: a start takes 3 s on an idle machine with 2 cores;
# beside 15 busy programs some tests have taken 60 s.
TIME_LIMIT_S = 200.0

# A shell that starts the suite in the background makes it ignore SIGINT, and so do the
# ranks.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Flight records of stalls, in the folder of a test.
RECORDS = "records"


class Forked:
    """A process that the fork server has started; as `subprocess.Popen`."""

    def __init__(
        self, command: list[str], output: IO[bytes], env: Mapping[str, str]
    ) -> None:
        self.args = [sys.executable, *command]
        self.returncode: int | None = None
        self._ended, ended = os.pipe()
        request = json.dumps({"command": command, "environment": env}).encode()
        channel, _ = _fork_server()
        socket.send_fds(channel, [request], [output.fileno(), ended])
        os.close(ended)
        self.pid = int(channel.recv(64))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(timeout=0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(os.read(self._ended, 64))
            os.close(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _fork_server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Returns that of this process: it ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, _FORK_SERVER, str(theirs.fileno())],
            env={**os.environ, **_ENVIRONMENT},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ours, server


# The environment of every rank; JAX reads the first two when it is imported.
_ENVIRONMENT = {
    "JAX_ENABLE_X64": "1",
    "JAX_PLATFORMS": "cpu",
}


@dataclasses.dataclass
class Rank:
    """One process.

    Attributes:
        process: the leader of its own process group, so that all of it can be killed.
        path: its output, both streams.
        environment: its own.
        command: the program and its arguments.
    """

    process: subprocess.Popen[bytes] | Forked
    path: Path
    environment: Mapping[str, str]
    command: list[str]

    @property
    def output(self) -> str:
        return self.path.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def lines(self, start: str) -> list[str]:
        """Returns the rest of each line of the output that begins with this text."""
        return [
            line.removeprefix(start).strip()
            for line in self.output.splitlines()
            if line.startswith(start)
        ]


class Ranks(list[Rank]):
    """The processes of one program, in rank order.

    Attributes:
        coordinators: the processes of their coordinator, the running one last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.coordinators: list[Forked] = []

    def describe(self) -> str:
        """Returns the outputs that a failed test should show."""
        return "\n".join(
            f"--- rank {i}, exit code {rank.code}\n{rank.output[-6000:]}"
            for i, rank in enumerate(self)
        )

    def write(self, name: str, text: str) -> None:
        """Writes a file of the folder, which a rank sees whole or not at all."""
        path = self[0].path.parent / name
        new = path.with_suffix(".new")
        new.write_text(text)
        new.rename(path)

    def start_again(self, rank: int, *, beside: bool = False) -> None:
        """Starts a new process for a rank; it adds its output to that of the old one.

        Args:
            rank: its number.
            beside: whether the old process still runs.
        """
        old = self[rank]
        assert beside or old.process.wait(timeout=TIME_LIMIT_S) is not None
        with old.path.open("ab") as output:
            process = Forked(old.command, output, old.environment)
        self[rank] = dataclasses.replace(old, process=process)

    def add(self) -> int:
        """Starts one more replica; returns its number."""
        first, number = self[0], len(self)
        path = first.path.with_name(f"rank{number}.txt")
        environment = {**first.environment, "JAX_OPTIREDUCE_REPLICA": str(number)}
        with path.open("wb") as output:
            process = Forked(first.command, output, environment)
        self.append(Rank(process, path, environment, first.command))
        return number

    def wait(self, *ranks: int, limit_s: float = TIME_LIMIT_S) -> None:
        """Waits for the end of these ranks, or of all."""
        waited = [self[i] for i in ranks or range(len(self))]
        end = time.monotonic() + limit_s
        while pending := [rank for rank in waited if rank.process.poll() is None]:
            if time.monotonic() > end:
                running = [self.index(rank) for rank in pending]
                raise AssertionError(
                    f"ranks {running} still run after {limit_s} s\n{self.describe()}"
                )
            time.sleep(0.02)

    def wait_for(self, rank: int, line: str, limit_s: float = TIME_LIMIT_S) -> None:
        """Waits until this rank has written a line that begins with this text."""
        end = time.monotonic() + limit_s
        while not self[rank].lines(line):
            over = self[rank].process.poll() is not None
            if over or time.monotonic() > end:
                raise AssertionError(
                    f"rank {rank} never wrote {line!r}\n{self.describe()}"
                )
            time.sleep(0.02)

    def wait_for_stop(self, rank: int, limit_s: float = TIME_LIMIT_S) -> None:
        """Waits until this rank has stopped itself by SIGSTOP."""
        status = Path(f"/proc/{self[rank].process.pid}/status")
        end = time.monotonic() + limit_s
        while "State:\tT" not in status.read_text():
            assert time.monotonic() < end, f"rank {rank} runs\n{self.describe()}"
            time.sleep(0.02)

    def succeed(self, *ranks: int) -> None:
        """Waits for these ranks, or all, and expects exit code 0 of each."""
        self.wait(*ranks)
        codes = {i: self[i].code for i in ranks or range(len(self))}
        assert not any(codes.values()), f"exit codes {codes}\n{self.describe()}"


def happens(folder: Path, event: str) -> None:
    """Lets an event happen, for which ranks wait (`programs/events.py`)."""
    (folder / f"event {event}").touch()


def _as_environment(options: Mapping[str, object]) -> dict[str, str]:
    """Returns the variables of `Options` and `Internal`."""
    return {f"JAX_OPTIREDUCE_{name.upper()}": str(x) for name, x in options.items()}


def _environment(
    folder: Path, address: str, world_size: int, devices: int
) -> dict[str, str]:
    """Returns the variables that all ranks have."""
    return {
        **os.environ,
        **_ENVIRONMENT,
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(world_size),
        # Status sockets of killed ranks stay behind.
        "XDG_RUNTIME_DIR": str(folder),
        "RANKS_FOLDER": str(folder),
        "XLA_FLAGS": (
            f"--xla_force_host_platform_device_count={devices}"
            # Most of the time of a program here is that of the compiler.
            " --xla_backend_optimization_level=0"
        ),
    }


def _start_in(
    namespace: str, command: list[str], output: IO[bytes], env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, *command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@contextlib.contextmanager
def start(
    program: str,
    *arguments: str,
    folder: Path,
    world_size: int,
    devices: int = 1,
    options: Mapping[str, object] | None = None,
    options_of: Mapping[int, Mapping[str, object]] | None = None,
    namespaces: Sequence[str] = (),
    address: str = "127.0.0.1",
    coordinator: bool = False,
    replicas: bool = False,
) -> Iterator[Ranks]:
    """Starts a program of the folder `programs` in `world_size` processes.

    Args:
        program: its name, without ".py".
        *arguments: for every rank.
        folder: an empty folder for the outputs.
        world_size: number of processes.
        devices: virtual CPU devices of each.
        options: fields of `Options` and `Internal`, passed through the environment.
        options_of: by rank, additional fields for this rank only.
        namespaces: network namespace of each rank; empty: all are in this one.
        address: of rank 0.
        coordinator: whether JAX's service is in a process of its own, not in rank 0.
        replicas: whether the processes are replicas, which JAX does not connect.
    """
    # The one after it is free, too: for a coordinator.
    with launch.reserved_ports(2) as port:
        pass
    common = _environment(folder, f"{address}:{port}", world_size, devices)
    given = {
        # A killed rank sends no goodbye, and process 0 would wait the default time.
        "shutdown_timeout_s": 3,
        # On any machine: errors and counters of several lanes differ.
        "lanes": 1,
        "flight_record_dir": folder / RECORDS,
        **(options or {}),
    }
    ranks = Ranks()
    coordinators = ranks.coordinators
    try:
        if coordinator or replicas:
            given["coordinator"] = f"{address}:{port}"
            of = ["--replicas"] if replicas else ["--ranks", str(world_size)]
            verb = ["coordinator", *of, "--port", str(port)]
            with (folder / "coordinator.txt").open("wb") as output:
                command = [str(_COMMAND_LINE), *verb, "--bind", address]
                environment = common | _as_environment(given)
                coordinators.append(Forked(command, output, environment))
        for i in range(world_size):
            path = folder / f"rank{i}.txt"
            environment = {
                **common,
                **_as_environment(given | dict((options_of or {}).get(i, {}))),
                "JAX_PROCESS_ID": str(i),
            }
            if replicas:
                environment["JAX_OPTIREDUCE_REPLICA"] = str(i)
            command = [str(_PROGRAMS / f"{program}.py"), *arguments]
            with path.open("wb") as output:
                if namespaces:
                    process = _start_in(namespaces[i], command, output, environment)
                else:
                    process = Forked(command, output, environment)
            ranks.append(Rank(process, path, environment, command))
        yield ranks
    finally:
        for process in [*(rank.process for rank in ranks), *coordinators]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start_with_loss(
    *program: str, folder: Path, deadline_s: float, **options: object
) -> contextlib.AbstractContextManager[Ranks]:
    """Starts a program in two processes with two devices each, and a lossy network.

    A fifth of the datagrams is lost, and the deadline is too short for all repairs.
    """
    given = {"deadline_s": deadline_s, "faults": "loss=0.2,seed=7", **options}
    given["datagram_bytes_max"] = 1472
    return start(*program, folder=folder, world_size=2, devices=2, options=given)
