"""The roll call: processes that come, leave or do not fit, and strangers."""

import concurrent.futures
import contextlib
import resource
import socket
import time

import pytest

from jax_optireduce import RendezvousError
from jax_optireduce._session import roll_call

# Chosen: long for a busy machine; the processes wait for each other, not for this time.
_PATIENCE_S = 60.0


@pytest.fixture
def address():
    """An address of this host that is free, and stays so for the test."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


@pytest.fixture
def hold(address, monkeypatch):
    """Starts one process of a job; returns the future of its roll call."""
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", address)
    with concurrent.futures.ThreadPoolExecutor() as threads:

        def start(process, processes, limit_s=_PATIENCE_S, **arguments):
            given = (address, processes, process, limit_s)
            return threads.submit(roll_call.hold, *given, **arguments)

        yield start


@pytest.fixture
def coordinate(address):
    """Starts the coordinator of a job; returns the future of its roll call."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        yield lambda processes: threads.submit(roll_call.host, address, processes)


def _connect(address):
    """Returns a connection to process 0, once it listens."""
    host, port = address.split(":")
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, int(port)), _PATIENCE_S)
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.01)


def _came(address, process, processes):
    """Returns the connection of a process that has come, after its first answer."""
    connection = _connect(address)
    job = roll_call._Job(address, processes, process)
    connection.sendall(roll_call._greeting(job))
    assert b"missing" in connection.recv(1 << 16)
    return connection


def _error(future):
    with pytest.raises(RendezvousError) as error:
        future.result(_PATIENCE_S)
    return str(error.value)


def test_processes_that_all_come_go_on(hold):
    processes = [hold(process, 3) for process in (2, 0, 1)]
    for process in processes:
        process.result(_PATIENCE_S)


def test_a_process_of_a_job_of_another_size_learns_what_each_side_expects(hold):
    first = hold(0, 2, limit_s=2)
    _, text = _error(hold(1, 3)).split("refuses this process: ")
    assert text.startswith("process 1 (pid ")
    assert "expects 3 processes and process 0 (pid " in text
    assert "expects 2; set the same JAX_NUM_PROCESSES everywhere." in text
    # Process 0 waits for the right one, and then says which came.
    assert f"Refused: {text}" in _error(first)


def test_the_second_process_with_a_number_learns_who_has_it(hold, address):
    first, other = hold(0, 4, limit_s=3), hold(2, 4, limit_s=3)
    with _came(address, 1, 4):
        _, text = _error(hold(1, 4)).split("refuses this process: ")
        assert "has the number of another one, pid " in text
        assert "give each of the 4 processes a JAX_PROCESS_ID of its own." in text
        assert "is none of the processes 0 to 3." in _error(hold(4, 4))
    for process in (first, other):
        assert "3 of 4 did not come" in (error := _error(process))
        assert f"Refused: {text}" in error


def test_a_second_process_0_is_refused_by_the_first(hold, address):
    first = hold(0, 2)
    _connect(address).close()  # It listens.
    assert "has the number of another one" in _error(hold(0, 2))
    hold(1, 2).result(_PATIENCE_S)
    first.result(_PATIENCE_S)


def test_a_process_that_has_gone_is_missing_until_it_comes_again(hold, address):
    first = hold(0, 3)
    _came(address, 1, 3).close()
    other = hold(2, 3)
    time.sleep(0.3)  # It has come.
    assert not first.done()
    hold(1, 3).result(_PATIENCE_S)
    for process in (first, other):
        process.result(_PATIENCE_S)


def test_a_process_that_has_gone_is_told_from_one_that_never_came(hold, address):
    first = hold(0, 3, limit_s=2)
    _came(address, 1, 3).close()
    text = _error(first)
    assert "process 2 of 3 did not come" in text
    assert "Process 1 came, and ended before all others had come." in text


def test_process_0_comes_to_a_coordinator_like_any_other(hold, coordinate):
    coordinator = coordinate(3)
    early = hold(1, 3, has_coordinator=True)
    text = _error(hold(2, 3, limit_s=1, has_coordinator=True))
    assert "process 0 of 3 did not come" in text
    assert "with this JAX_OPTIREDUCE_COORDINATOR, JAX_NUM_PROCESSES=3" in text
    processes = [hold(process, 3, has_coordinator=True) for process in (0, 2)]
    for process in (coordinator, early, *processes):
        process.result(_PATIENCE_S)


def test_a_coordinator_that_does_not_answer_is_named_with_its_command(hold, address):
    text = _error(hold(0, 2, limit_s=0.3, has_coordinator=True))
    assert f"the coordinator did not answer at {address} within 0.3 s." in text
    _, _, port = address.rpartition(":")
    assert f"jax_optireduce coordinator --ranks 2 --port {port} there" in text


def test_a_coordinator_refuses_a_process_of_a_job_of_another_size(
    hold, coordinate, address
):
    coordinator = coordinate(2)
    start, text = _error(hold(0, 3, has_coordinator=True)).split(" (pid ", 1)
    assert start == (f"the coordinator at {address} refuses this process: process 0")
    assert "expects 3 processes and the coordinator (pid " in text
    assert text.endswith("same JAX_NUM_PROCESSES everywhere, and as --ranks.")
    processes = [hold(process, 2, has_coordinator=True) for process in (1, 0)]
    for process in (coordinator, *processes):
        process.result(_PATIENCE_S)


def test_a_second_coordinator_does_not_listen_beside_the_first(
    hold, coordinate, address
):
    first = coordinate(2)
    _connect(address).close()  # It listens.
    assert f"cannot listen at {address}: another program" in _error(coordinate(2))
    processes = [hold(process, 2, has_coordinator=True) for process in (0, 1)]
    for process in (first, *processes):
        process.result(_PATIENCE_S)


def test_idle_connections_do_not_exhaust_the_open_files(hold, address):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    try:
        with contextlib.ExitStack() as stack:
            first = hold(0, 2)
            # Both ends of each are in this process.
            for _ in range(600):
                stack.enter_context(_connect(address))
            hold(1, 2).result(_PATIENCE_S)
            first.result(_PATIENCE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("line", [b"", b"GET / HTTP/1.1\r\n\r\n", b"jax_optireduce "])
def test_strangers_are_not_told_who_is_missing(hold, address, line):
    first = hold(0, 3, limit_s=2)
    with _connect(address) as stranger:
        stranger.sendall(line)
        with _came(address, 1, 3):
            assert "process 2 of 3 did not come" in _error(first)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1 << 16) == b""


def test_a_program_at_the_address_that_never_answers_is_left_to_jax(
    address, hold, monkeypatch
):
    monkeypatch.setattr(roll_call, "_ANSWER_S", 0.2)
    host, port = address.split(":")
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        silent.bind((host, int(port)))
        silent.listen()
        hold(1, 2).result()
