"""The outer loop of DiLoCo, in replicas."""

import pytest
import ranks


def _start(case, folder, world_size, **options):
    return ranks.start(
        *("outer_loop", case),
        folder=folder,
        world_size=world_size,
        options={"replicas_min": world_size, **options},
        replicas=True,
    )


@pytest.mark.parametrize("case", ["each_step", "parts", "weighted"])
def test_the_outer_loop_computes_the_outer_steps_of_all_replicas(case, tmp_path):
    with _start(case, tmp_path, 2) as started:
        started.succeed()
        assert all(rank.lines("done") == [""] for rank in started)


def test_the_gradients_of_a_late_replica_are_not_lost(tmp_path):
    with _start("late", tmp_path, 3, deadline_s=0.05, max_lag=64) as started:
        started.succeed()


def test_a_replica_goes_on_without_a_dead_one(tmp_path):
    options = {"peer_timeout_s": 2.0, "replicas_min": 1}
    with _start("dead", tmp_path, 2, **options) as started:
        started.wait_for(0, "step 10 2")
        started[1].process.kill()
        started.succeed(0)
        assert started[0].lines("alone"), started.describe()
