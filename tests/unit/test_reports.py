"""The reports of a rank, at a coordinator that is absent, ends, or does not read."""

import contextlib
import json
import os
import select
import signal
import socket
import sys

import pytest

from jax_optireduce._session import process_end, reports
from jax_optireduce._session.options import Options
from jax_optireduce.tools import launch

# Only a hang takes longer.
_LIMIT_S = 60.0


class Source:
    """A communicator with the counters that a test sets."""

    rank = place = 2
    options = Options()

    def __init__(self):
        self.totals = {}
        self.skipped = 0

    def places_of(self, ranks):
        return list(ranks)

    def counters(self):
        names = ("live_processes", "calls_completed", "calls_failed")
        return dict.fromkeys(names, 3) | {"calls_skipped": self.skipped}

    def collective_totals(self):
        return self.totals

    def ends(self, calls, missing, skipped):
        """Lets calls end: the sums since the begin of the session."""
        self.totals = {"grads": {"calls": [0, calls], "missing_contributions": missing}}
        self.skipped = skipped


class Coordinator:
    """A listener that a test reads at its own pace."""

    def __init__(self, port):
        self.address = f"127.0.0.1:{port}"
        self._listener = socket.create_server(
            ("127.0.0.1", port + 1), reuse_port=True, backlog=1
        )
        self._listener.settimeout(_LIMIT_S)

    def accept(self):
        connection, _ = self._listener.accept()
        connection.settimeout(_LIMIT_S)
        return connection

    def close(self):
        self._listener.close()


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(reports, "_PERIOD_S", 0.02)
    with launch.reserved_ports(2) as reserved:
        yield reserved


@pytest.fixture
def coordinator(port):
    with contextlib.closing(Coordinator(port)) as listening:
        yield listening


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def reporter(source, port):
    """A reporter, which ends with the test."""
    made = reports.Reporter(source, lambda: (4, 40), f"127.0.0.1:{port}", 2)
    yield made
    made.end("the end of the test")


def read(connection):
    """Returns the next report."""
    with connection.makefile("rb") as lines:
        return reports.parse(lines.readline())


@pytest.mark.usefixtures("reporter")
def test_a_report_has_the_place_of_the_process_and_its_counters(coordinator):
    with coordinator.accept() as connection:
        assert read(connection) == {
            "rank": 2,
            "replica": "",
            "life": 2,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "session": 4,
            "step": 40,
            "state": "running",
            "reason": "",
            "live_processes": 3,
            "participation": None,
            "skipped": None,
            "calls_completed": 3,
            "calls_failed": 3,
            "calls_skipped": 0,
            "call": "",
            "call_age_s": 0.0,
            "waiting_for": [],
            "absent": [],
            "calls_behind": [],
        }


def test_shares_are_of_the_calls_since_the_report_before(port, source):
    sessions = [0]
    reporter = reports.Reporter(
        source, lambda: (sessions[-1], None), f"127.0.0.1:{port}", 1
    )
    reporter.end("not needed")

    def shares():
        shown = reporter._report()
        return shown["participation"], shown["skipped"]

    assert shares() == (None, None)
    source.ends(calls=10, missing=0.5, skipped=0)
    assert shares() == (0.95, 0.0)
    source.ends(calls=12, missing=1.5, skipped=6)
    assert shares() == (0.5, 0.75)
    assert shares() == (0.5, 0.75), "no call has ended since"
    sessions.append(1)
    source.ends(calls=20, missing=5.0, skipped=0)
    assert shares() == (0.75, 0.0), "counters of the next session begin at 0"


def test_a_rank_is_behind_if_two_reports_in_succession_have_seen_it(
    port, source, monkeypatch
):
    seen = {}
    monkeypatch.setattr(reports.status, "read_own", lambda *_: seen)
    reporter = reports.Reporter(source, lambda: (0, None), f"127.0.0.1:{port}", 1)
    reporter.end("not needed")

    def behind(*calls):
        peers = [{"rank": r, "calls_behind": n} for r, n in enumerate(calls)]
        seen["peers"] = peers
        return reporter._report()["calls_behind"]

    assert behind(0, 5, 1) == []
    assert behind(3, 2, 0) == [[1, 2]]
    assert behind(1, 0, 0) == [[0, 1]]


def test_the_call_is_the_oldest_under_way(coordinator, monkeypatch, source):
    identity = {"collective": "grads", "sequence": 7, "age_s": 61.5}
    call = identity | {"waiting_for": [0, 1], "absent": [1]}
    newer = call | {"sequence": 8}
    monkeypatch.setattr(
        reports.status, "read_own", lambda *_: {"calls": [call, newer], "peers": []}
    )
    reporter = reports.Reporter(source, lambda: (0, None), coordinator.address, 1)
    with coordinator.accept() as connection:
        shown = read(connection)
    reporter.end("the end of the test")
    assert (shown["call"], shown["call_age_s"]) == ("call 7 of 'grads'", 61.5)
    assert (shown["waiting_for"], shown["absent"]) == ([0, 1], [1])


@pytest.mark.usefixtures("reporter")
def test_a_coordinator_that_comes_late_or_again_gets_reports(port):
    for _ in range(2):
        with (
            contextlib.closing(Coordinator(port)) as coordinator,
            coordinator.accept() as connection,
        ):
            assert read(connection)["state"] == "running"


@pytest.mark.parametrize(("error", "state"), [(False, "ended"), (True, "failed")])
def test_the_last_report_has_the_end_and_its_reason(
    coordinator, source, monkeypatch, error, state
):
    monkeypatch.setattr(process_end, "ends_by_error", lambda: error)
    reporter = reports.Reporter(source, lambda: (0, None), coordinator.address, 1)
    with coordinator.accept() as connection:
        first = connection.recv(1)
        reporter.end("it exits")
        with connection.makefile("rb") as rest:
            lines = (first + rest.read()).splitlines()
    last = json.loads(lines[-1])
    assert (last["state"], last["reason"]) == (state, "it exits")
    assert {json.loads(line)["state"] for line in lines[:-1]} <= {"running"}


def test_a_coordinator_that_does_not_read_delays_no_end(
    coordinator, source, monkeypatch
):
    monkeypatch.setattr(reports, "_PERIOD_S", 0.0)
    reporter = reports.Reporter(source, lambda: (0, None), coordinator.address, 1)
    with coordinator.accept() as connection:
        # Until the thread waits for room in the buffers of the kernel.
        poll = select.poll()
        sent = reporter._connection
        while sent is None:
            sent = reporter._connection
        poll.register(sent, select.POLLOUT)
        while poll.poll(10):
            pass
        reporter.end("it exits")
        connection.recv(1)


def test_a_forked_process_does_not_keep_the_connection_of_its_dead_parent(coordinator):
    program = f"""
import os, time
from jax_optireduce._session import communicator, options, reports
made = communicator.Communicator(2, 3, options.Options(), None, 0)
made._reporter = reports.Reporter(made, lambda: (0, None), {coordinator.address!r}, 1)
communicator._session.current = made
while made._reporter._connection is None:
    time.sleep(0.01)
child = os.fork()
if child == 0:
    time.sleep(1000)
print(child, flush=True)
time.sleep(1000)
"""
    read_end, write_end = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", program],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write_end, 1)],
    )
    os.close(write_end)
    with os.fdopen(read_end) as output, coordinator.accept() as connection:
        child = int(output.readline())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        try:
            with connection.makefile("rb") as lines:
                assert lines.read(), "it ends"
        finally:
            os.kill(child, signal.SIGKILL)
