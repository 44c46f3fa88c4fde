"""Calls by the way of GPU and TPU programs, in programs for CPU devices.

A host computation on a CPU runs as on an accelerator: the operands are flat vectors,
and XLA does not alias the results to them.
"""

import pytest
import ranks

ON_HOST = {"host_call": "host_computation"}


def _check_sums(folder, world_size, *, options, **how):
    options = {"deadline_s": 30, **options}
    with ranks.start(
        "correctness", folder=folder, world_size=world_size, options=options, **how
    ) as started:
        started.succeed()
        bits = {line for rank in started for line in rank.lines("bits")}
        assert len(bits) == 1, started.describe()


@pytest.mark.parametrize(
    ("world_size", "devices"), [pytest.param(2, 1, marks=pytest.mark.long), (2, 2)]
)
def test_sums_are_right_and_have_the_same_bits_on_all_ranks(
    tmp_path, world_size, devices
):
    _check_sums(tmp_path, world_size, devices=devices, options=ON_HOST)


def test_ranks_with_and_without_host_computations_compute_the_same_sums(tmp_path):
    _check_sums(tmp_path, 2, options={}, options_of={1: ON_HOST})


def test_training_is_that_of_lax(tmp_path):
    with ranks.start(
        "histories", folder=tmp_path, world_size=2, options=ON_HOST
    ) as started:
        started.succeed()
        for rank in started:
            assert rank.lines("ours") == rank.lines("lax"), started.describe()
        assert started[0].lines("ours") == started[1].lines("ours")


@pytest.mark.long
def test_a_leaf_of_100_megabytes_arrives_whole(tmp_path):
    with ranks.start(
        "large_leaf", folder=tmp_path, world_size=2, options=ON_HOST
    ) as started:
        started.succeed()


@pytest.mark.long
def test_training_where_the_compiler_shards_some_axes(tmp_path):
    with ranks.start(
        *("partly_manual", "2", "auto", "few"),
        folder=tmp_path,
        world_size=2,
        devices=2,
        options=ON_HOST,
    ) as started:
        started.succeed()
        for rank in started:
            cases = [line.split() for line in rank.lines("case")]
            assert len(cases) == 4, rank.output
            assert max(float(difference) for _, difference in cases) < 1e-6, cases


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_devices_of_a_process_get_the_same_result_of_missing_data(tmp_path, mode):
    with ranks.start_with_loss(
        "partly_manual_loss", mode, folder=tmp_path, deadline_s=0.02, **ON_HOST
    ) as started:
        started.succeed()
        for rank in started:
            assert float(rank.lines("copies")[0]) == 0.0, rank.output
            assert int(rank.lines("unreported")[0]) == 0, rank.output
            assert float(rank.lines("missing")[0]) > 0, rank.output
