"""`begin` and `end` in several processes: results, errors, the end of a process."""

import re

import pytest
import ranks

# Chosen: longer than any pause of a busy machine.
_IN_TIME = {"deadline_s": 20}
# Loss and a short deadline: data is late in most calls.
_LATE = {"deadline_s": 0.004, "faults": "loss=0.05,seed=7"}


@pytest.mark.parametrize(
    ("mode", "wire_format", "devices", "limit", "host_call"),
    [
        ("agreed", "float32", 2, 1e-4, ""),
        ("bounded", "float32", 1, 1e-4, "host_computation"),
        ("lossy", "float32", 2, 1e-4, "host_computation"),
        # 50 roundings of gradients of about 3, at a rate of 0.05.
        ("exact", "bfloat16", 1, 0.05, ""),
    ],
)
def test_sgd_equals_pmean_of_the_step_before(
    tmp_path, mode, wire_format, devices, limit, host_call
):
    with ranks.start(
        "handles",
        *("train", mode, wire_format, "1"),
        folder=tmp_path,
        world_size=2,
        devices=devices,
        options={**_IN_TIME, "host_call": host_call},
    ) as started:
        started.succeed()
        for rank in started:
            assert float(rank.lines("distance")[0]) < limit, started.describe()
            assert rank.lines("failed") == ["0 0"], started.describe()


@pytest.mark.parametrize(
    ("mode", "wire_format"),
    [("agreed", "float32"), ("bounded", "int8")],
)
def test_late_data_of_begun_calls_is_in_later_ones_and_a_drain(
    tmp_path, mode, wire_format
):
    with ranks.start(
        "handles",
        *("train", mode, wire_format, "0"),
        folder=tmp_path,
        world_size=2,
        options=_LATE,
    ) as started:
        started.succeed()
        for rank in started:
            assert float(rank.lines("distance")[0]) < 1e-3, started.describe()
            assert rank.lines("failed") == ["0 0"], started.describe()
        assert sum(int(rank.lines("late")[0]) for rank in started) > 0


def test_a_process_completes_its_begun_calls_at_its_end(tmp_path):
    # Much longer than the test may take.
    options = {"shutdown_timeout_s": 10_000}
    with ranks.start(
        "handles", "exit", folder=tmp_path, world_size=2, options=options
    ) as started:
        started.succeed()
        assert started[1].lines("equal") == ["True"], started.describe()
        assert not any("given up" in rank.output for rank in started)


@pytest.mark.parametrize(
    ("how", "message", "typed"),
    [
        ("dead", r"rank 1 (has|did|is)", ["PeerLost 1 call 1"]),
        ("cancel", "it took too long", ["Cancelled none call 1", "Cancelled 0 call 1"]),
        (
            "disagree",
            "exact.*agreed|agreed.*exact",
            ["Disagreement 0,1 call 0"] * 2,
        ),
    ],
)
def test_an_error_of_a_call_is_that_of_its_end(tmp_path, how, message, typed):
    options = {"peer_timeout_s": 2}
    with ranks.start(
        "handles", how, folder=tmp_path, world_size=2, options=options
    ) as started:
        alive = [started[0]] if how == "dead" else list(started)
        started.wait(*range(len(alive)))
        lines = [rank.lines("typed") for rank in alive]
        assert lines == [[x] for x in typed], started.describe()
        for rank in alive:
            assert rank.lines("begun") == [""], started.describe()
            assert re.search(message, rank.lines("error")[0]), started.describe()
            if how == "cancel":
                assert rank.lines("next") == ["True"], started.describe()
