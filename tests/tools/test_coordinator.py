"""`coordinator`: a process that is none of the job, until a signal."""

import concurrent.futures
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jax_optireduce._session import roll_call
from jax_optireduce.tools import launch

# Chosen: a start of Python with JAX takes some 2 s, ten times that on a busy machine.
_PATIENCE_S = 60.0

_COMMAND = [sys.executable, "-m", "jax_optireduce", "coordinator", "--ranks", "2"]


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this host that is free, as the next one, and stays so for the test."""
    with launch.reserved_ports(2) as reserved:
        yield reserved


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@contextlib.contextmanager
def _coordinator(port: int) -> Iterator[subprocess.Popen[str]]:
    """The coordinator of two processes, once it listens."""
    with subprocess.Popen(
        [*_COMMAND, "--port", str(port), "--bind", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            listens = f"waiting for 2 processes at 127.0.0.1:{port}\n"
            assert _line(process) == listens
            yield process
        finally:
            process.kill()


def _end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Sends a signal; returns the exit code, and what the process has written."""
    process.send_signal(number)
    _, err = process.communicate(timeout=_PATIENCE_S)
    return process.returncode, err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 128 + signal.SIGINT)]
)
def test_a_signal_ends_it_while_processes_are_missing(port, number, code):
    with _coordinator(port) as process:
        assert _end(process, number) == (code, "")


def test_it_serves_once_all_have_come_and_until_sigterm(port):
    with _coordinator(port) as process:
        with concurrent.futures.ThreadPoolExecutor() as threads:
            for number in (0, 1):
                threads.submit(
                    *(roll_call.hold, f"127.0.0.1:{port}", 2, number, _PATIENCE_S),
                    has_coordinator=True,
                )
        while (line := _line(process)) != "all 2 processes have come\n":
            assert line, "it has ended"
        socket.create_connection(("127.0.0.1", port), _PATIENCE_S).close()
        code, err = _end(process, signal.SIGTERM)
        assert code == 0, err
        assert "Traceback" not in err


def test_a_port_that_is_in_use_is_named():
    # The next port is free.
    with launch.reserved_ports(2) as port, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        ran = subprocess.run(
            [*_COMMAND, "--port", str(port), "--bind", "127.0.0.1"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    assert ran.returncode == 1
    assert f"coordinator cannot listen at 127.0.0.1:{port}: " in ran.stderr
    assert "--port a free TCP port." in ran.stderr


def test_the_next_port_is_needed_for_the_reports_of_the_processes():
    with launch.reserved_ports(2) as port, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port + 1))
        other.listen()
        ran = subprocess.run(
            [*_COMMAND, "--port", str(port), "--bind", "127.0.0.1"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    assert ran.returncode == 1
    assert f"coordinator cannot listen at 127.0.0.1:{port + 1}: " in ran.stderr


def test_the_last_port_has_no_next_one():
    ran = subprocess.run(
        [*_COMMAND, "--port", "65535", "--bind", "127.0.0.1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    assert ran.returncode == 1
    assert "coordinator cannot listen at 127.0.0.1:65536: " in ran.stderr
    assert "Traceback" not in ran.stderr
