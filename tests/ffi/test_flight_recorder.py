"""FlightRecorder: the last calls, with their times and ends."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native

_UNAVAILABLE = 14


@hypothesis.given(st.integers(1, 20), st.lists(st.booleans(), max_size=60))
def test_the_record_holds_the_newest_calls_and_those_under_way(capacity, ends):
    recorder = native.FlightRecorder(capacity)
    states = {}
    for i, end in enumerate(ends):
        number = recorder.begin("c", i, float(i))
        states[number] = "under way"
        if end:
            assert recorder.end(number, i + 0.5, 0, "")
            states[number] = "done"
    kept = dict(list(states.items())[-capacity:])
    records = recorder.records()
    assert {r["number"]: r["state"] for r in records} == kept
    assert [r["number"] for r in records] == sorted(kept)
    under_way = [n for n, state in kept.items() if state == "under way"]
    assert recorder.under_way() == len(under_way)
    assert [r["number"] for r in recorder.open_records()] == under_way
    ended = [n for n, state in kept.items() if state == "done"]
    assert recorder.last_ended() == max(ended, default=None)
    assert recorder.oldest_untold() == min(under_way, default=None)
    recorder.tell_all()
    assert recorder.oldest_untold() is None


def test_a_call_that_was_overwritten_ends_without_a_trace():
    recorder = native.FlightRecorder(2)
    first = recorder.begin("c", 0, 0.0)
    for i in (1, 2):
        recorder.begin("c", i, float(i))
    assert not recorder.end(first, 3.0, 0, "")
    assert [r["sequence"] for r in recorder.records()] == [1, 2]


def test_a_record_says_what_when_and_how_it_ended():
    recorder = native.FlightRecorder()
    number = recorder.begin("grads", 7, 2.0)
    assert recorder.end(number, 2.5, _UNAVAILABLE, "rank 1 is gone " + "x" * 1000)
    (record,) = recorder.records()
    assert record["collective"] == "grads"
    assert record["description"] == "grads f32"
    assert (record["sequence"], record["bytes"]) == (7, 400)
    assert record["started_monotonic_s"] == 2.0
    assert record["started_unix_s"] == 1e9 + 2.0
    assert (record["state"], record["elapsed_s"]) == ("failed", 0.5)
    assert record["error"].startswith("rank 1 is gone")
    assert len(record["error"]) == 400
    assert record["slowest_process"] == -1


def test_the_number_of_an_ended_call_counts_the_calls_that_its_rank_has_skipped():
    recorder = native.FlightRecorder()
    first, second = (recorder.begin("grads", i, 0.0) for i in range(2))
    assert recorder.end(first, 1.0, 0, "", 7)
    assert recorder.end(second, 1.0, _UNAVAILABLE, "it never began")
    assert [r["sequence"] for r in recorder.records()] == [7, 1]
