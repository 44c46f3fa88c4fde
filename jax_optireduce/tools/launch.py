"""`python -m jax_optireduce launch`: a program as several processes on this host.

    python -m jax_optireduce launch -n 4 train.py --steps 100
    python -m jax_optireduce launch -n 4 --restart 10 -m my_package.train
    python -m jax_optireduce launch -n 4 --replicas replicas.py

Each process gets `JAX_OPTIREDUCE_COORDINATOR`, `JAX_NUM_PROCESSES` and
`JAX_PROCESS_ID`, which `jax_optireduce.init()` reads, and cores of its own if
there are enough. Its rank precedes each line of its output, "[2] loss 0.31",
and "[coordinator]" those of the process that serves them. On several hosts use
their launcher, such as SLURM or Kubernetes: the same program runs unchanged.
With `--replicas` the processes are replicas, which JAX does not connect: each
gets a `JAX_OPTIREDUCE_REPLICA` in place of the last two.

Programs run on CPU devices, unless `JAX_PLATFORMS=cuda` is set: each process
has then a GPU of its own, or several processes share one, if there are fewer.
On a shared one the collectives of JAX fail, since NCCL refuses it.

No process outlives the launcher. After a failure the other processes have time
to report their errors: 5 s more than `JAX_OPTIREDUCE_PEER_TIMEOUT_S`, after
which their calls name a dead process. Then they get SIGTERM, and 5 s later
SIGKILL. `--grace-s` replaces both times. With `--keep-going` they continue to
their own end, as calls of mode "bounded" can, and with `--restart` a failed
process is started again beside them. The launcher forwards Ctrl-C and SIGTERM
immediately. If the launcher is killed, the kernel kills its child
processes (but not their children).

Exit codes: 0, every process ended with 0, at last; otherwise the code of the
first failed one that was not started again (128 + the signal's number if a
signal ended it); 130 after Ctrl-C, 143 after SIGTERM; 2, usage error.
"""

import argparse
import contextlib
import dataclasses
import io
import itertools
import math
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from jax_optireduce._errors import UsageError
from jax_optireduce._session.options import resolve
from jax_optireduce.tools import accelerator_checks, arguments

# Bytes of one read of a pipe. Source: pipe(7), the capacity of a pipe.
_READ_BYTES = 65536

# Exit code of a process that a signal ended, less the number of the signal.
# Source: the convention of POSIX shells.
EXIT_BY_SIGNAL = 128

# Time for the report of an error, and from SIGTERM to SIGKILL, in seconds.
# Chosen: sufficient for a report, and short for a user.
_GRACE_S = 5.0

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this verb to `parser`."""
    parser.add_argument(
        *("-n", "--processes"),
        **arguments.whole(1),
        required=True,
        help="number of processes",
    )
    parser.add_argument(
        "--devices-per-process",
        **arguments.whole(1, "K"),
        default=1,
        help="CPU devices that JAX shows in each process (default 1)",
    )
    parser.add_argument(
        "--cores",
        **arguments.one_of("auto", "none"),
        default="auto",
        help="auto: separate cores for each process, if there are enough; "
        "none: all cores for all processes (default auto)",
    )
    parser.add_argument(
        "--grace-s",
        **arguments.seconds(),
        help="seconds from a failure to SIGTERM, and then to SIGKILL (default: "
        "peer_timeout_s and 5, then 5)",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="when a process fails, do not end the others",
    )
    parser.add_argument(
        "--restart",
        **arguments.whole(0, "K"),
        default=0,
        help="start a failed process again, up to K times in all, and do not end "
        "the others (default 0)",
    )
    parser.add_argument(
        "--replicas",
        action="store_true",
        help="the processes are replicas, see Options.replica",
    )
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="the target is a module, as in `python -m`",
    )
    parser.add_argument("target", help="the script, or with -m the module")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the program"
    )
    rest.required = False  # Otherwise an error demands it on some Pythons.


def run(args: argparse.Namespace) -> int:
    """Starts the processes and waits for the end of all.

    Raises:
      UsageError: the script does not exist.
    """
    if not args.module and not Path(args.target).is_file():
        raise UsageError(
            f"there is no file {args.target!r} here; give the path of a script, or -m "
            "and the name of a module."
        )
    program = [sys.executable]
    program += ["-m", args.target] if args.module else [args.target]
    program += args.arguments
    return start(
        program,
        processes=args.processes,
        devices_per_process=args.devices_per_process,
        pinned=args.cores == "auto",
        grace_s=args.grace_s,
        keep_going=args.keep_going,
        restarts=args.restart,
        replicas=args.replicas,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Child:
    """A process of a launch, which may be started more than once.

    Attributes:
      name: precedes the lines of its output.
      command: the program and its arguments.
      environment: all of its variables.
      cores: on which it runs; (): on all.
      direct: whether it writes to the streams of the launcher, without a prefix.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    cores: tuple[int, ...] = ()
    direct: bool = False


def start(
    program: Sequence[str],
    *,
    processes: int,
    devices_per_process: int = 1,
    pinned: bool = True,
    grace_s: float | None = None,
    keep_going: bool = False,
    restarts: int = 0,
    replicas: bool = False,
    direct: Container[int] = (),
) -> int:
    """Starts a program as several processes and waits for the end of all.

    Args:
      program: the command.
      processes: number of processes.
      devices_per_process: CPU devices that JAX shows in each process.
      pinned: whether each gets separate cores, if there are enough.
      grace_s: seconds from a failure to SIGTERM, and then to SIGKILL; None: long
        enough for the others to find a dead process, then 5.
      keep_going: whether the others continue after a failure.
      restarts: largest number of new starts of failed processes, all together; with
        some the others continue after a failure, too.
      replicas: whether the processes are replicas, which JAX does not connect.
      direct: ranks that write to the streams of this process, without a prefix.

    Raises:
      UsageError: a variable JAX_OPTIREDUCE_* is no option, or has no valid value.
    """
    if grace_s is None:
        options, _ = resolve({}, os.environ)
        graces_s = (options.peer_timeout_s + _GRACE_S, _GRACE_S)
    else:
        graces_s = (grace_s, grace_s)
    with reserved_ports(2) as port, reserved_ports() as other_port:
        cores = (
            core_sets(processes, os.sched_getaffinity(0))
            if pinned
            else [()] * processes
        )
        # One process alone has nothing to agree on.
        served = replicas or processes > 1
        coordinator = _coordinator(processes, port, replicas) if served else None
        ranks = [
            _Child(
                name=str(rank),
                command=program,
                environment=environment(
                    os.environ,
                    rank=rank,
                    processes=processes,
                    coordinator=f"127.0.0.1:{port}" if coordinator else "",
                    own_service=f"127.0.0.1:{other_port}",
                    devices_per_process=devices_per_process,
                    replicas=replicas,
                ),
                cores=cores[rank],
                direct=rank in direct,
            )
            for rank in range(processes)
        ]
        keep_going = keep_going or restarts > 0
        started = _Launch(graces_s, keep_going=keep_going, restarts=restarts)
        return started.run(ranks, coordinator)


def core_sets(processes: int, available: set[int]) -> list[tuple[int, ...]]:
    """Divides cores among processes, in blocks that differ by at most one core.

    Args:
      processes: number of processes.
      available: numbers of the available cores.

    Returns:
      One tuple of cores per process. All are empty, without pinning, for fewer cores
      than processes: the scheduler shares cores better than a fixed rule.
    """
    ordered = sorted(available)
    if processes > len(ordered):
        return [()] * processes
    bounds = [len(ordered) * i // processes for i in range(processes + 1)]
    return [tuple(ordered[a:b]) for a, b in itertools.pairwise(bounds)]


def environment(
    inherited: Mapping[str, str],
    *,
    rank: int,
    processes: int,
    coordinator: str,
    own_service: str,
    devices_per_process: int,
    replicas: bool = False,
) -> dict[str, str]:
    """Returns the environment of one process.

    Args:
      inherited: environment of the launcher.
      rank: index of the process.
      processes: number of processes.
      coordinator: "address:port" of the coordinator; "" without one.
      own_service: the same of the service that process 0 starts if the program
        initialises `jax.distributed` itself.
      devices_per_process: CPU devices that JAX shows in each process.
      replicas: whether JAX does not connect the processes.
    """
    # The older option for several CPU devices, which JAX refuses beside the newer.
    flags = re.sub(
        r"--xla_force_host_platform_device_count=\d+",
        "",
        inherited.get("XLA_FLAGS", ""),
    )
    place = {"JAX_NUM_PROCESSES": str(processes), "JAX_PROCESS_ID": str(rank)}
    if replicas:
        # All of them begin the job, unless the user says otherwise.
        least = inherited.get("JAX_OPTIREDUCE_REPLICAS_MIN", str(processes))
        place = {
            "JAX_OPTIREDUCE_REPLICA": str(rank),
            "JAX_OPTIREDUCE_REPLICAS_MIN": least,
        }
    return {
        "JAX_PLATFORMS": "cpu",
        # Lines are shown immediately, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
        **inherited,
        "XLA_FLAGS": flags.strip(),
        "JAX_OPTIREDUCE_COORDINATOR": coordinator,
        "JAX_COORDINATOR_ADDRESS": own_service,
        # By default JAX listens on every interface; this session is local.
        "JAX_COORDINATOR_BIND_ADDRESS": own_service,
        "JAX_NUM_CPU_DEVICES": str(devices_per_process),
        **place,
        **of_gpu(inherited, rank, processes, accelerator_checks.count_devices("cuda")),
    }


def of_gpu(
    inherited: Mapping[str, str], rank: int, processes: int, devices: int
) -> dict[str, str]:
    """Returns the variables with which a process gets a GPU, alone or with others.

    Args:
      inherited: environment of the launcher.
      rank: index of the process.
      processes: number of processes.
      devices: number of GPUs of this host.
    """
    listed = inherited.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices))))
    if not listed or not inherited.get("JAX_PLATFORMS", "").startswith("cuda"):
        return {}
    visible = listed.split(",")
    found = {"CUDA_VISIBLE_DEVICES": visible[rank % len(visible)]}
    if processes > len(visible):
        # JAX would give the first process three quarters of the memory.
        found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return found


def _coordinator(processes: int, port: int, replicas: bool) -> _Child:
    """Returns the process that serves the others, so that any of them may die."""
    of = ["--replicas"] if replicas else ["--ranks", str(processes)]
    verb = ["-m", "jax_optireduce", "coordinator", *of]
    return _Child(
        name="coordinator",
        command=[sys.executable, *verb, "--port", str(port), "--bind", "127.0.0.1"],
        environment={"JAX_PLATFORMS": "cpu", **os.environ},
    )


@contextlib.contextmanager
def reserved_ports(count: int = 1) -> Iterator[int]:
    """Reserves consecutive loopback ports for services; yields the first one.

    A service that listens with SO_REUSEPORT, as gRPC does, can use a port that is bound
    here without `listen`. No process of another user can, and no second launcher
    chooses it.
    """
    while True:
        with contextlib.ExitStack() as reservations:
            first = 0
            try:
                for at in range(count):
                    reservation = reservations.enter_context(socket.socket())
                    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    reservation.bind(("127.0.0.1", first and first + at))
                    first = first or reservation.getsockname()[1]
            except (OSError, OverflowError):
                if not first:
                    raise
                continue  # The port after it is in use, or is none.
            yield first
            return


@dataclasses.dataclass
class _Output:
    """One stream of one process, cut into lines."""

    name: str
    source: IO[bytes]
    sink: IO[bytes]
    rest: bytes = b""

    def forward(self) -> bool:
        """Shows the complete lines; returns False at the end of the stream."""
        while True:
            try:
                data = os.read(self.source.fileno(), _READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self.rest = (self.rest + data).split(b"\n")
            self._show(lines)

    def finish(self) -> None:
        """Shows the remaining output, including an incomplete last line."""
        self.forward()
        if self.rest:
            self._show([self.rest])
            self.rest = b""
        self.source.close()

    def _show(self, lines: Sequence[bytes]) -> None:
        prefix = f"[{self.name}] ".encode()
        self.sink.write(b"".join(prefix + line + b"\n" for line in lines))
        self.sink.flush()


class _Launch:
    """The processes of one launch, and their event loop."""

    def __init__(
        self,
        graces_s: tuple[float, float],
        *,
        keep_going: bool,
        restarts: int,
    ) -> None:
        # The times from a failure to SIGTERM, and from SIGTERM to SIGKILL.
        self._report_s, self._grace_s = graces_s
        self._keep_going = keep_going
        self._restarts = restarts
        self._restarted = 0
        self._selector = selectors.DefaultSelector()
        # The interpreter writes the number of each signal to one end.
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._alive: dict[_Child, subprocess.Popen[bytes]] = {}
        self._outputs: dict[_Child, list[_Output]] = {}
        self._coordinator: _Child | None = None
        self._exit_code = 0
        # The next signal to the live processes, and its time (monotonic seconds).
        self._next_signal = signal.SIGTERM
        self._signal_at_s = math.inf

    def run(self, ranks: Sequence[_Child], coordinator: _Child | None) -> int:
        self._selector.register(self._woken, selectors.EVENT_READ, self._on_signal)
        handlers = {s: signal.signal(s, lambda *_: None) for s in _FORWARDED}
        previous_fd = signal.set_wakeup_fd(self._wake.fileno())
        try:
            self._coordinator = coordinator
            if coordinator is not None:
                self._start(coordinator)
            for rank in ranks:
                self._start(rank)
            while self._alive:
                self._handle_events()
        finally:
            for child in list(self._alive):
                self._send(child, signal.SIGKILL)
                self._alive[child].wait()
            signal.set_wakeup_fd(previous_fd)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            self._selector.close()
            self._wake.close()
            self._woken.close()
        return self._exit_code

    def _start(self, child: _Child) -> None:
        starter = [
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).with_name("_exec_child.py")),
        ]
        cores = ",".join(map(str, child.cores))
        process = subprocess.Popen(
            [*starter, str(os.getpid()), cores, *child.command],
            env=child.environment,
            stdin=subprocess.DEVNULL,
            stdout=None if child.direct else subprocess.PIPE,
            stderr=None if child.direct else subprocess.PIPE,
            bufsize=0,
            # A separate group: the terminal's Ctrl-C arrives once, by this process, and
            # children of the program can be ended with it.
            process_group=0,
        )
        self._alive[child] = process
        self._outputs[child] = []
        pipes = (
            (process.stdout, sys.stdout.buffer),
            (process.stderr, sys.stderr.buffer),
        )
        for source, sink in pipes:
            if source is None:
                continue
            os.set_blocking(source.fileno(), False)
            output = _Output(child.name, source, sink)
            self._outputs[child].append(output)
            self._selector.register(
                source,
                selectors.EVENT_READ,
                lambda output=output: self._on_output(output),
            )
        ended = os.pidfd_open(process.pid)
        self._selector.register(
            ended, selectors.EVENT_READ, lambda: self._on_exit(child, ended)
        )

    def _handle_events(self) -> None:
        """Waits for events or the next due signal, and handles them."""
        wait_s = max(0.0, self._signal_at_s - time.monotonic())
        for key, _ in self._selector.select(None if wait_s == math.inf else wait_s):
            # An earlier event may have closed the file of this one. The map finds a
            # closed file by its number only.
            if key.fd in self._selector.get_map():
                key.data()
        if time.monotonic() >= self._signal_at_s:
            for child in self._targets():
                self._send(child, self._next_signal)
            self._schedule(signal.SIGKILL, self._grace_s)

    def _targets(self) -> list[_Child]:
        """Returns the processes that signals are for: the coordinator ends last."""
        ranks = [child for child in self._alive if child is not self._coordinator]
        return ranks or list(self._alive)

    def _on_output(self, output: _Output) -> None:
        if not output.forward():
            self._selector.unregister(output.source)

    def _on_exit(self, child: _Child, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        # Until `wait`, the number of the group stays reserved.
        self._send(child, signal.SIGKILL)
        code = self._alive.pop(child).wait()
        for output in self._outputs.pop(child):
            if output.source in self._selector.get_map():
                self._selector.unregister(output.source)
            output.finish()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        if child is self._coordinator:
            self._on_coordinator_end(code, how)
            return
        self._on_rank_end(child, code, how)
        if list(self._alive) == [self._coordinator]:
            # The time of the next signal was for the ranks.
            self._schedule(signal.SIGTERM, 0.0)

    def _on_rank_end(self, child: _Child, code: int, how: str) -> None:
        if child.direct and code == EXIT_BY_SIGNAL + signal.SIGPIPE:
            self._exit_code = self._exit_code or code
            self._end_silently()
            return
        if code == 0 or (self._exit_code != 0 and not self._keep_going):
            return
        said = f"rank {child.name} ended with {how}; "
        if self._restarted < self._restarts:
            self._restarted += 1
            _say(f"{said}it is started again ({self._restarted} of {self._restarts})")
            self._start(child)
            return
        self._exit_code = self._exit_code or _exit_code(code)
        if self._keep_going:
            _say(f"{said}the others continue")
            return
        _say(f"{said}the others have {self._report_s:g} s")
        self._schedule(signal.SIGTERM, self._report_s)

    def _on_coordinator_end(self, code: int, how: str) -> None:
        """Ends the ranks, which JAX aborts if they do not end."""
        if not self._alive:
            return
        _say(f"the coordinator ended with {how}; the ranks cannot continue")
        self._exit_code = self._exit_code or _exit_code(code) or 1
        self._keep_going, self._restarts = False, 0
        self._schedule(signal.SIGTERM, 0.0)

    def _end_silently(self) -> None:
        """Ends all processes, whose reader, such as `head`, has ended: no failure."""
        for child in self._targets():
            self._send(child, signal.SIGKILL)
        for outputs in self._outputs.values():
            for output in outputs:
                output.sink = io.BytesIO()  # Errors about the end of the others.

    def _on_signal(self) -> None:
        for number in self._woken.recv(_READ_BYTES):
            if number not in _FORWARDED:
                continue
            name = signal.Signals(number).name
            targets = self._targets()
            _say(f"{name}: ending {len(targets)} processes")
            self._exit_code = self._exit_code or EXIT_BY_SIGNAL + number
            self._restarts = 0
            for child in targets:
                self._send(child, signal.Signals(number))
            self._schedule(signal.SIGKILL, self._grace_s)

    def _schedule(self, number: signal.Signals, after_s: float) -> None:
        self._next_signal = number
        self._signal_at_s = time.monotonic() + after_s

    def _send(self, child: _Child, number: signal.Signals) -> None:
        # The process may have just ended; the loop detects that next.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._alive[child].pid, number)


def _exit_code(code: int) -> int:
    """Returns the exit code of a process as that of the launcher."""
    return code if code >= 0 else EXIT_BY_SIGNAL - code


def _say(text: str) -> None:
    print(f"[launch] {text}", file=sys.stderr, flush=True)
