"""Metrics, profiles, timelines and comparisons of replicas, of real processes."""

import gzip
import json
import re

import jax
import numpy as np
import pytest
import ranks
from prometheus_client.parser import text_string_to_metric_families

from jax_optireduce.__main__ import main

WORLD_SIZE, STEPS, BYTES = 3, 4, 80_000
TITLE = "optireduce grads exact 78.1 KiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder with the files of one run, in which rank 2 is late by 0.3 s."""
    return tmp_path_factory.mktemp("observed")


@pytest.fixture(scope="module")
def ended(folder, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    with ranks.start(
        "observed", str(folder), folder=logs, world_size=WORLD_SIZE
    ) as started:
        started.succeed()
        yield started


def _samples(folder, rank):
    families = text_string_to_metric_families((folder / f"{rank}.metrics").read_text())
    return [sample for family in families for sample in family.samples]


@pytest.mark.usefixtures("ended")
def test_a_scrape_has_the_calls_of_each_collective_and_the_counters(folder):
    for rank in range(WORLD_SIZE):
        samples = _samples(folder, rank)
        assert {sample.labels["rank"] for sample in samples} == {str(rank)}
        value = {
            sample.name: sample.value
            for sample in samples
            if sample.labels.keys() == {"rank"}
        }
        assert value["jax_optireduce_calls_completed_total"] == STEPS
        assert value["jax_optireduce_live_processes"] == WORLD_SIZE
        io = {
            sample.labels["network_io_direction"]: sample.value
            for sample in samples
            if sample.name == "jax_optireduce_network_io_bytes_total"
        }
        # Each rank sends and receives two thirds of each bucket in both stages.
        least = STEPS * BYTES * 4 / 3
        assert io.keys() == {"transmit", "receive"}
        assert all(least <= number < 10 * least for number in io.values())


@pytest.mark.usefixtures("ended")
def test_the_histogram_has_the_durations_of_the_flight_record(folder):
    for rank in range(WORLD_SIZE):
        samples = [s for s in _samples(folder, rank) if "collective" in s.labels]
        assert {s.labels["collective"].split(" mesh=")[0] for s in samples} == {"grads"}
        _, *calls = map(json.loads, (folder / f"{rank}.jsonl").read_text().splitlines())
        durations = [call["elapsed_s"] for call in calls]
        name = "jax_optireduce_call_duration_seconds"
        of_name = {s.name: s.value for s in samples if not s.name.endswith("_bucket")}
        assert of_name[f"{name}_count"] == STEPS == len(durations)
        assert of_name[f"{name}_sum"] == pytest.approx(sum(durations))
        assert of_name["jax_optireduce_call_bytes_total"] == STEPS * BYTES
        buckets = {
            float(s.labels["le"]): s.value
            for s in samples
            if s.name == f"{name}_bucket"
        }
        assert buckets[np.inf] == STEPS
        for end, count in buckets.items():
            assert count == sum(duration <= end for duration in durations)


@pytest.mark.usefixtures("ended")
def test_a_profile_names_the_start_and_the_end_of_a_call(folder):
    # XLA writes "_" for other characters, and appends the number of the instruction.
    instruction = re.sub(r"\W", "_", TITLE) + "."
    traces = list(folder.glob("profile */**/*.trace.json.gz"))
    assert len(traces) == WORLD_SIZE
    contents = [json.loads(gzip.decompress(trace.read_bytes())) for trace in traces]
    of_ranks = [[e.get("name", "") for e in c["traceEvents"]] for c in contents]
    for names in of_ranks:
        assert any(name.startswith(instruction) for name in names), set(names)
        assert not any("ffi_call" in name for name in names)
    # The call of the first rank at least does not end at once.
    names = [name for names in of_ranks for name in names]
    assert any(name.startswith(f"end: {instruction}") for name in names)
    # The readers of xplane.pb (XProf) have the same names.
    (xplane,) = (folder / "profile 0").rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(xplane)).planes
    lines = [line for plane in planes for line in plane.lines]
    events = [event.name for line in lines for event in line.events]
    assert any(name.startswith(instruction) for name in events)


@pytest.mark.usefixtures("ended")
def test_a_timeline_of_all_ranks_shows_the_wait_for_the_late_one(folder):
    records = [str(folder / f"{rank}.jsonl") for rank in range(WORLD_SIZE)]
    output = folder / "trace.json"
    assert main(["timeline", *records, "-o", str(output)]) == 0
    events = json.loads(output.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [name.split(" (")[0] for name in names.values()] == [
        f"rank {rank}" for rank in range(WORLD_SIZE)
    ]
    for rank in (0, 1):
        of_rank = [event for event in events if event["pid"] == rank]
        calls = [e for e in of_rank if e["name"].startswith("call ")]
        assert len(calls) == STEPS
        waits = [e for e in of_rank if e["name"].startswith("waits for rank 2 ")]
        # The first call also waits for the compilation of every rank.
        assert len(waits) >= STEPS - 1
        # Rank 2 sleeps for 0.3 s before each call.
        assert sum(wait["dur"] for wait in waits) > 0.5e6
        late = [e for e in of_rank if e["name"] == "data of rank 2"]
        assert len(late) >= STEPS - 1
        for wait in waits:
            end = wait["ts"] + wait["dur"]
            assert any(abs(mark["ts"] - end) < 1 for mark in late)
            assert any(
                call["ts"] <= wait["ts"] and end <= call["ts"] + call["dur"] + 1
                for call in calls
            )


def test_a_replica_that_differs_is_named_by_every_rank(ended):
    for rank in ended:
        of_global, of_local, of_tree = rank.lines("unequal ")
        for line in (of_global, of_local):
            assert line.startswith(
                "replicas differ in leaf ['b'] (float32[8]): rank 1 from rank 0, rank 2"
            ), line
        assert of_tree.startswith(
            "the trees differ: leaf ['b'] (float32[8]) exists on rank 0, 2, but not on "
            "rank 1."
        ), of_tree


def test_the_drift_of_all_ranks_is_the_same_on_each(ended):
    row = np.arange(8.0)
    changed = np.stack([row, row + 1, row])
    expected = np.linalg.norm(changed - changed.mean(0), axis=1)
    expected /= np.linalg.norm(changed, axis=1)
    lines = [rank.lines("drift ") for rank in ended]
    assert all(line == lines[0] for line in lines)
    equal, drift = (np.array(line.split(), float) for line in lines[0])
    assert equal.tolist() == [0.0] * WORLD_SIZE
    np.testing.assert_allclose(drift, expected, rtol=1 / 3)
