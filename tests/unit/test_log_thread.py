"""Lines of the log: slow ranks, removed ones, short deadlines, stalls; the files."""

import contextlib
import json
import logging
import os
import queue
import stat

import pytest

from jax_optireduce import Options
from jax_optireduce._session import log_thread

_CALL = {
    "number": 5,
    "collective": "grads",
    "sequence": 4,
    "state": "under way",
    "elapsed_s": 61.0,
    "error": "",
    "waiting_for": [1, 2],
    "absent": [2],
}


class Native:
    """The native communicator's events, from a queue."""

    rank, world_size = 3, 4

    def __init__(self):
        self.events = queue.SimpleQueue()

    def wait_for_event(self):
        return self.events.get()

    def flight_record(self):
        return [_CALL]

    def counters(self):
        return {"bytes_sent": 7}


def stall(**changes):
    return {"kind": "stall", "call": {**_CALL, **changes}, "others": 0}


def slow(**changes):
    event = {
        "kind": "slow",
        "rank": 3,
        "collective": "grads",
        "calls": 10,
        "waited": 9,
        "absent": 0,
        "behind_s": 0.212,
        "elapsed_s": 1.23,
    }
    return {**event, **changes}


def lines_of(caplog, folder, *events, **options):
    """Logs these events and returns the lines."""
    native = Native()
    options = Options(flight_record_dir=str(folder), **options)
    with caplog.at_level(logging.WARNING, "jax_optireduce"):
        thread = log_thread.LogThread(native, native, options)
        for one in (*events, None):
            native.events.put(one)
        thread.end()
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def _first_dump(monkeypatch):
    monkeypatch.setattr(log_thread, "_numbers", iter(range(1000)))


def test_slow_rank_is_named_with_figures_and_advice(caplog, tmp_path):
    (line,) = lines_of(caplog, tmp_path, slow())
    for part in (
        "rank 3 is slow",
        "9 of the last 10 calls of 'grads'",
        "212 ms after",
        "took 1.2 s",
        "Check its host",
    ):
        assert part in line


def test_rank_whose_data_is_missing_is_told_apart(caplog, tmp_path):
    (line,) = lines_of(caplog, tmp_path, slow(absent=8))
    assert "none of its data arrived in time in 8 of the last 10 calls" in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"deadline_s": 0.02},
            ["deadline_s=0.02", "Set a longer deadline_s, or none"],
        ),
        ({}, ["calls). Late", "Look for a slow rank, or a slow link"]),
    ],
)
def test_much_late_data_is_named_with_its_share_and_settings(
    caplog, tmp_path, options, said
):
    event = {"kind": "late share", "collective": "grads", "calls": 50, "late": 0.413}
    (line,) = lines_of(caplog, tmp_path, event, **options)
    for part in (
        "41 % of the data of calls of 'grads' was late",
        "last 50 calls",
        *said,
    ):
        assert part in line
    assert not list(tmp_path.iterdir())


def test_recovery_has_a_line(caplog, tmp_path):
    (line,) = lines_of(caplog, tmp_path, slow(kind="recovered", waited=2))
    assert "rank 3 has recovered: 2 of the last 10 calls of 'grads'" in line


@pytest.mark.parametrize(
    ("suggested", "said"), [(5.2, "5.2"), (0.0123, "0.012"), (344.7, "340")]
)
def test_short_deadline_is_named_with_figures_and_a_longer_one(
    caplog, tmp_path, suggested, said
):
    event = {
        "kind": "short deadline",
        "collective": "grads",
        "calls": 10,
        "late": 0.713,
        "needed_s": 2.6,
        "suggested_s": suggested,
    }
    (line,) = lines_of(caplog, tmp_path, event, deadline_max_s=0.5)
    for part in (
        "calls of 'grads' end before their data arrives",
        "71 % of it was late (mean of the last 10 calls)",
        "learned deadline is 2.6 s",
        "deadline_max_s=0.5 cuts it",
        f"set deadline_max_s={said}, ",
        "bucket_bytes",
    ):
        assert part in line
    assert not list(tmp_path.iterdir())


def test_stall_names_the_call_and_the_ranks_and_leaves_a_file(caplog, tmp_path):
    (line,) = lines_of(caplog, tmp_path / "new", stall())
    assert "call 4 of 'grads' has been under way for 61.0 s" in line
    assert "waits for rank 2, whose data for this call is missing" in line
    assert "data of rank 1" in line
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.startswith("jax_optireduce-flight-3-")
    assert str(path) in line
    head, record = map(json.loads, path.read_text().splitlines())
    assert (head["rank"], head["world_size"], head["records"]) == (3, 4, 1)
    assert head["counters"] == {"bytes_sent": 7}
    assert "call 4 of 'grads'" in head["reason"]
    assert record == _CALL


def test_failure_is_told_with_its_error(caplog, tmp_path):
    failed = stall(
        state="failed", error="rank 2 was silent.", absent=[], waiting_for=[]
    )
    (line,) = lines_of(caplog, tmp_path, failed)
    assert "call 4 of 'grads' failed after 61.0 s: rank 2 was silent. " in line


def test_removal_names_the_rank_and_those_left_and_leaves_a_file(caplog, tmp_path):
    removed = {"kind": "removed", "ranks": [1], "live": 3, "path": ""}
    (line,) = lines_of(caplog, tmp_path, removed, peer_timeout_s=7.0)
    for part in (
        "rank 1 removed from the session after silence for more than 7.0 s",
        "3 ranks continue",
        "jax_optireduce.resync",
        "jax_optireduce.join",
    ):
        assert part in line
    (path,) = tmp_path.iterdir()
    assert str(path) in line
    assert "rank 1 removed" in json.loads(path.read_text().splitlines()[0])["reason"]


@pytest.mark.parametrize("rank", [1, 3])
def test_removal_for_a_path_names_the_path_and_no_silence(caplog, tmp_path, rank):
    path = "datagrams of 1472 bytes from rank 1 to rank 3 do not arrive"
    removed = {"kind": "removed", "ranks": [rank], "live": 3, "path": path}
    (line,) = lines_of(caplog, tmp_path, removed)
    assert path in line
    assert "heard all the time" in line
    assert "silence" not in line


def test_removal_of_the_own_process_is_said_to_be_that(caplog, tmp_path):
    removed = {"kind": "removed", "ranks": [3], "live": 3, "path": ""}
    (line,) = lines_of(caplog, tmp_path, removed)
    assert "this process, rank 3, was removed" in line
    assert "All its further calls fail" in line


def test_a_call_that_this_process_passes_by_is_told_with_both_calls(caplog, tmp_path):
    event = {
        "kind": "lone call",
        "rank": 0,
        "call": "call 0 of metric: float32[], exact",
        "elsewhere": "call 25 of grads: float32[8], bounded",
        "waited_s": 10.2,
        "limit_s": 60.0,
    }
    (line,) = lines_of(caplog, tmp_path, event)
    assert line.startswith(
        "rank 0 has waited 10.2 s in call 0 of metric: float32[], exact, which this "
        "process, rank 3, has not made: it has gone on to call 25 of grads"
    )
    assert "fails after 60.0 s" in line


def test_devices_that_wait_for_others_are_named_and_leave_a_file(caplog, tmp_path):
    event = {
        "kind": "devices",
        "collective": "grads",
        "sequence": 4,
        "started": [2, 3],
        "missing": [1],
        "elapsed_s": 61.0,
        "others": 2,
    }
    (line,) = lines_of(caplog, tmp_path, event)
    assert "call 4 of 'grads' waits in this process" in line
    assert "ranks 2 and 3 started it 61.0 s ago, rank 1 not yet." in line
    assert "2 more calls wait in the same way" in line
    assert len(list(tmp_path.iterdir())) == 1


def test_no_file_is_written_where_stalls_are_not_told(caplog, tmp_path):
    removed = {"kind": "removed", "ranks": [1], "live": 3, "path": ""}
    (line,) = lines_of(caplog, tmp_path, removed, stall_timeout_s=0)
    assert line.endswith("jax_optireduce.join.")
    assert not list(tmp_path.iterdir())


def test_a_process_writes_a_limited_number_of_files(caplog, tmp_path):
    lines = lines_of(caplog, tmp_path, *[stall()] * 12)
    assert len(lines) == 12
    assert len(list(tmp_path.iterdir())) == 8
    assert "No file was written: a process writes 8" in lines[-1]


def test_a_file_that_is_there_is_left_alone(caplog, tmp_path):
    lines_of(caplog, tmp_path, stall())
    (first,) = tmp_path.iterdir()
    first.write_text("mine")
    caplog.clear()
    log_thread._numbers = iter(range(1000))
    (line,) = lines_of(caplog, tmp_path, stall())
    assert first.read_text() == "mine"
    assert str(first) not in line
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_said(caplog, tmp_path):
    (tmp_path / "file").write_text("")
    (line,) = lines_of(caplog, tmp_path / "file", stall())
    assert "could not be written" in line


def test_dump_on_request_replaces_the_file(tmp_path):
    path = tmp_path / "record.jsonl"
    path.write_text("old\n" * 10)
    log_thread.dump(Native(), path)
    head, record = map(json.loads, path.read_text().splitlines())
    assert head["reason"] == "requested by the program"
    assert record == _CALL


def test_a_dump_on_request_is_readable_by_its_user_only(tmp_path):
    old_mask = os.umask(0o022)
    try:
        log_thread.dump(Native(), tmp_path / "record.jsonl")
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE((tmp_path / "record.jsonl").stat().st_mode) == 0o600


def test_no_folder_for_temporary_files_is_told_and_the_watch_goes_on(
    caplog, monkeypatch
):
    def no_folder():
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(log_thread.tempfile, "gettempdir", no_folder)
    first, second = lines_of(caplog, "", stall(), slow())
    assert "The flight record could not be written (no usable temporary" in first
    assert "rank 3 is slow" in second


def test_watch_outlives_a_handler_that_raises(caplog, tmp_path):
    class Broken(logging.Handler):
        def emit(self, record):
            if "is slow" in record.getMessage():
                raise RuntimeError("the log is full")

    handler = Broken()
    logger = logging.getLogger("jax_optireduce")
    logger.addHandler(handler)
    try:
        lines = lines_of(caplog, tmp_path, slow(), slow(), stall())
    finally:
        logger.removeHandler(handler)
    assert lines.count("an event of kind 'slow' was not logged") == 1
    assert "call 4 of 'grads' has been under way" in lines[-1]


def test_flight_record_of_a_stall_is_for_its_owner_only(caplog, tmp_path):
    lines_of(caplog, tmp_path, stall())
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


_LATE = [(f"'call {i}' (float32[9], mode bounded, 2 ranks)", 10**i) for i in range(8)]


def test_late_data_at_the_end_is_told_by_collective_most_first():
    line = log_thread.describe_late_data(_LATE)
    assert "9.5 MiB of 'call 7' (float32[9], mode bounded, 2 ranks), 976.6 KiB" in line
    assert "1000 bytes of 'call 3'" not in line
    assert " and 1.1 KiB of others. This data is lost." in line
    assert "3 bytes of 'x'" in log_thread.describe_late_data([("'x'", 3)])


def test_late_data_is_not_told_without_any_or_while_an_error_ends_the_program(caplog):
    log_thread.log_late_data([])
    with contextlib.suppress(ArithmeticError):
        try:
            raise ArithmeticError
        finally:
            log_thread.log_late_data(_LATE)
    assert not caplog.records
    log_thread.log_late_data(_LATE)
    assert len(caplog.records) == 1
