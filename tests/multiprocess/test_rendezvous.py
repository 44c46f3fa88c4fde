"""Processes find each other in every supported way, or say why they did not."""

import os
import subprocess
import sys

import pytest
import ranks


@pytest.mark.parametrize(
    "how",
    [
        "plainly",
        "without key-value client",
        "jax.distributed initialised before",
        "twice",
    ],
)
def test_processes_join(tmp_path, how):
    with ranks.start("rendezvous", how, folder=tmp_path, world_size=2) as started:
        started.succeed()
        sums = [rank.lines("sum") for rank in started]
        assert sums == [["3.0 0 2"], ["3.0 1 2"]], started.describe()


def test_sessions_on_one_host_do_not_meet(tmp_path):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    with (
        ranks.start("rendezvous", "plainly", folder=folders[0], world_size=2) as one,
        ranks.start("rendezvous", "plainly", folder=folders[1], world_size=2) as other,
    ):
        for session in (one, other):
            session.succeed()
            sums = [rank.lines("sum") for rank in session]
            assert sums == [["3.0 0 2"], ["3.0 1 2"]], session.describe()


def test_xla_backend_gives_the_same_sums_without_change_of_code(tmp_path):
    with ranks.start(
        "rendezvous",
        "plainly",
        folder=tmp_path,
        world_size=2,
        options={"backend": "xla"},
    ) as started:
        started.succeed()
        assert started[1].lines("sum") == ["3.0 1 2"], started.describe()


def test_different_options_are_named_on_every_rank(tmp_path):
    with ranks.start(
        "rendezvous", "different options", folder=tmp_path, world_size=2
    ) as started:
        started.succeed()
        for rank in started:
            (line,) = rank.lines("error")
            assert "lanes is 1 on rank 0 and 2 on rank 1" in line
            assert "bucket_bytes is 1000 on rank 0 and 1001 on rank 1" in line


def test_incomplete_environment_says_what_is_missing():
    result = subprocess.run(
        [sys.executable, "-c", "import jax_optireduce; jax_optireduce.init()"],
        env={**os.environ, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 1
    assert "but not JAX_COORDINATOR_ADDRESS; set all three" in result.stderr
