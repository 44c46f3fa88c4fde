"""Calls in regions where the compiler shards some axes by itself."""

import pytest
import ranks

# Cases of way, specs, check_vma, set_mesh: see the program.
CASES = {"all": 16, "few": 4}


@pytest.mark.parametrize(
    ("processes", "fast", "kind", "which"),
    [
        pytest.param(2, 2, "auto", "all", marks=pytest.mark.long),
        (2, 2, "explicit", "few"),
        pytest.param(2, 2, "explicit", "all", marks=pytest.mark.long),
        pytest.param(4, 2, "auto", "few", marks=pytest.mark.long),
        pytest.param(2, 4, "auto", "few", marks=pytest.mark.long),
    ],
)
def test_training_is_that_of_a_program_without_a_mesh(
    tmp_path, processes, fast, kind, which
):
    with ranks.start(
        *("partly_manual", str(fast), kind, which),
        folder=tmp_path,
        world_size=processes,
        devices=fast,
    ) as started:
        started.succeed()
        for rank in started:
            cases = [line.split() for line in rank.lines("case")]
            assert len(cases) == CASES[which], rank.output
            assert max(float(difference) for _, difference in cases) < 1e-6, cases


@pytest.mark.parametrize("mode", ["agreed", "lossy"])
def test_devices_of_a_process_get_the_same_result_of_missing_data(tmp_path, mode):
    with ranks.start_with_loss(
        *("partly_manual_loss", mode), folder=tmp_path, deadline_s=0.004
    ) as started:
        started.succeed()
        for rank in started:
            assert float(rank.lines("copies")[0]) == 0.0, rank.output
            assert int(rank.lines("unreported")[0]) == 0, rank.output
            # All devices have one report, so they decide alike.
            assert int(rank.lines("spread")[0]) == 1, rank.output
            assert float(rank.lines("missing")[0]) > 0, rank.output
