"""Late data arrives with later calls or a drain, and replicas can be made equal."""

import pytest
import ranks


@pytest.mark.parametrize(
    ("sleep_s", "options"),
    [
        pytest.param(0.0, {"deadline_s": 30.0}, id="clean"),
        pytest.param(0.0, {"deadline_s": 0.03, "faults": "loss=0.1,seed=5"}, id="loss"),
        pytest.param(0.1, {"deadline_s": 0.05}, id="straggler", marks=pytest.mark.long),
    ],
)
def test_nothing_is_lost_and_resync_gives_the_same_bits(tmp_path, sleep_s, options):
    with ranks.start(
        "drain_and_resync", str(sleep_s), folder=tmp_path, world_size=4, options=options
    ) as started:
        started.succeed()
        for rank in started:
            lines = rank.lines("conserved")
            assert len(lines) == 2, started.describe()
            for line in lines:
                error, late, carried, in_flight = map(float, line.split())
                assert error == 0, line
                assert 0 <= in_flight <= 1, line
                if options["deadline_s"] > 1:
                    assert late == carried == 0, line
                elif "faults" in options:
                    assert late > 0, line
                    assert carried > 0, line
        for equal in ("agreed", "bits"):
            digests = [line for rank in started for line in rank.lines(equal)]
            assert len(digests) == 4, started.describe()
            assert len(set(digests)) == 1, started.describe()


@pytest.mark.parametrize(
    "mode", [pytest.param("exact", marks=pytest.mark.long), "bounded"]
)
def test_run_that_is_restored_from_a_checkpoint_equals_one_that_went_on(tmp_path, mode):
    bits = []
    checkpoint = tmp_path / "checkpoint"
    for part, (folder, first, last) in enumerate(
        [("", 0, 12), (checkpoint, 0, 6), (checkpoint, 6, 12)]
    ):
        output = tmp_path / f"part {part}"
        output.mkdir()
        arguments = [mode, str(folder), str(first), str(last)]
        with ranks.start(
            "checkpoint", *arguments, folder=output, world_size=2
        ) as started:
            started.succeed()
            found = {line for rank in started for line in rank.lines("bits")}
            assert len(found) == 1, started.describe()
            bits += found
            for rank in started:
                assert rank.lines("calls") == [str(last)], started.describe()
    assert bits[0] == bits[2] != bits[1]
