"""Checkpoints after the death of process 0, in real processes."""

import ranks


def test_the_survivors_learn_of_a_death_from_the_resync_and_save(tmp_path):
    options = {"peer_timeout_s": 2.0}
    with ranks.start(
        *("saving", str(tmp_path / "checkpoints")),
        folder=tmp_path,
        world_size=3,
        options=options,
        coordinator=True,
    ) as started:
        # The others then wait for this rank in a drain.
        for rank in range(3):
            started.wait_for(rank, "stepped")
        started[0].process.kill()
        started.succeed(1, 2)
        for rank in started[1:]:
            # No step has seen the death.
            assert rank.lines("stepped") == ["3"], started.describe()
            assert rank.lines("synced") == ["2"], started.describe()
            assert rank.lines("saved") == ["True"], started.describe()
            assert rank.lines("done"), started.describe()
