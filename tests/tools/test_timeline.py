"""`timeline`: flight records of several ranks as one trace."""

import json

import pytest

from jax_optireduce.__main__ import main
from jax_optireduce.tools import timeline


def _call(number, start_s, elapsed_s, **changes):
    call = {
        "number": number,
        "collective": "grads",
        "sequence": number - 1,
        "description": "'grads' (float32[10], mode bounded, 3 ranks)",
        "bytes": 40,
        "started_unix_s": 1000.0 + start_s,
        "started_monotonic_s": 50.0 + start_s,
        "state": "done",
        "elapsed_s": elapsed_s,
        "error": "",
        "missing_contributions": 0.0,
        "missing_results": 0.0,
        "retransmitted": 0,
        "late": 0,
        "slowest_process": 1,
        "behind_s": 0.0,
        "arrivals": [],
        "waiting_for": [],
        "absent": [],
    }
    return {**call, **changes}


def _written(path, rank, calls, pid=7):
    head = {"rank": rank, "pid": pid, "world_size": 3}
    head |= {"reason": "requested", "written_unix_s": 1.0}
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *calls)))
    return str(path)


def _events(*records):
    return timeline.trace_events(list(records))["traceEvents"]


def _of(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_a_rank_is_a_process_a_collective_a_thread_and_a_call_a_slice(tmp_path, capsys):
    paths = [
        _written(tmp_path / "0", 0, [_call(1, 0.0, 0.5)]),
        _written(
            tmp_path / "1",
            1,
            [_call(1, 0.25, 0.25), _call(2, 1.0, 0.5, collective="loss")],
        ),
    ]
    output = tmp_path / "trace.json"
    assert main(["timeline", *paths, "-o", str(output)]) == 0
    assert "3 calls of 2 processes" in capsys.readouterr().out
    events = json.loads(output.read_text())["traceEvents"]
    names = [(e["pid"], e["tid"], e["args"]["name"]) for e in _of(events, "M")]
    assert names == [
        (0, 0, "rank 0 (pid 7)"),
        (0, 0, "grads"),
        (1, 0, "rank 1 (pid 7)"),
        (1, 0, "grads"),
        (1, 1, "loss"),
    ]
    slices = [(e["pid"], e["tid"], e["ts"], e["dur"]) for e in _of(events, "X")]
    assert slices == [
        (0, 0, 0.0, 500_000.0),
        (1, 0, 250_000.0, 250_000.0),
        (1, 1, 1_000_000.0, 500_000.0),
    ]
    arguments = _of(events, "X")[0]["args"]
    assert (arguments["mode"], arguments["bytes"]) == ("bounded", 40)
    assert arguments["missing_contributions"] == 0


def test_the_wait_for_the_slowest_rank_ends_when_its_data_arrives():
    arrivals = [[3, 0.3], [2, 0.088], [1, -0.5]]
    call = _call(1, 0.0, 0.4, slowest_process=3, behind_s=0.212, arrivals=arrivals)
    events = _events(timeline.Record(0, 7, [call]))
    whole, wait = _of(events, "X")
    assert wait["name"] == "waits for rank 3 212 ms"
    assert (wait["ts"], wait["dur"]) == (88_000, 212_000)
    assert whole["ts"] <= wait["ts"]
    marks = [(mark["name"], mark["ts"]) for mark in _of(events, "i")]
    assert marks == [("data of rank 3", 300_000), ("data of rank 2", 88_000)]


def test_the_wait_for_a_rank_without_data_lasts_to_the_end():
    call = _call(1, 0.0, 0.4, slowest_process=2, behind_s=0.1, missing_results=0.5)
    _, wait = _of(_events(timeline.Record(0, 7, [call])), "X")
    assert wait["ts"] + wait["dur"] == 400_000


def test_open_and_failed_calls_show_their_state():
    calls = [
        _call(1, 0.0, 0.1, state="failed", error="rank 1 is gone", slowest_process=-1),
        _call(2, 1.0, 9.0, state="under way", waiting_for=[1, 2], slowest_process=-1),
    ]
    failed, under_way, wait = _of(_events(timeline.Record(0, 7, calls)), "X")
    assert failed["name"] == "call 0 (failed)"
    assert failed["args"]["error"] == "rank 1 is gone"
    assert under_way["name"] == "call 1 (under way)"
    assert wait["name"] == "waits for rank 1, 2"


def test_simultaneous_calls_of_a_collective_do_not_overlap_in_a_thread():
    calls = [_call(1, 0.0, 1.0), _call(2, 0.5, 1.0), _call(3, 1.0, 0.2)]
    slices = _of(_events(timeline.Record(0, 7, calls)), "X")
    assert [event["tid"] for event in slices] == [0, 1, 0]


def test_a_clock_that_is_set_moves_no_call_of_a_process():
    calls = [_call(1, 0.0, 0.5), _call(2, 1.0, 0.5)]
    calls[1]["started_unix_s"] += 3600
    slices = _of(_events(timeline.Record(0, 7, calls)), "X")
    assert [event["ts"] for event in slices] == [0, 1_000_000]


def test_files_of_one_process_are_joined_with_the_last_state_of_a_call():
    first = timeline.Record(0, 7, [_call(1, 0, 1), _call(2, 1, 5, state="under way")])
    second = timeline.Record(0, 7, [_call(2, 1, 6), _call(3, 8, 1)])
    for order in ([first, second], [second, first]):
        (joined,) = timeline.merged(order)
        assert [c["number"] for c in joined.calls] == [1, 2, 3]
        assert {c["state"] for c in joined.calls} == {"done"}
    restarted = timeline.Record(0, 8, [_call(1, 20, 1)])
    assert len(timeline.merged([first, restarted])) == 2


@pytest.mark.parametrize("content", ["", "no json\n", "[1]\n", '{"rank": 0}\n'])
def test_a_file_without_a_record_is_an_error_with_its_name(tmp_path, capsys, content):
    path = tmp_path / "other.txt"
    path.write_text(content)
    output = tmp_path / "trace.json"
    assert main(["timeline", str(path), "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert "other.txt" in error
    assert "dump_flight_record" in error
    assert not output.exists()
