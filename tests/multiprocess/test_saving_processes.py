"""A checkpoint after the death of a rank, in real processes."""

import ranks


def test_the_survivors_learn_of_a_death_from_the_resync_and_save(tmp_path):
    options = {"peer_timeout_s": 2.0}
    folder = tmp_path / "checkpoint"
    with ranks.start(
        "saving", str(folder), folder=tmp_path, world_size=3, options=options
    ) as started:
        # The others then wait for this rank in a drain.
        for rank in range(3):
            started.wait_for(rank, "stepped")
        started[2].process.kill()
        started.succeed(0, 1)
        for rank in started[:2]:
            # No step has seen the death.
            assert rank.lines("stepped") == ["3"], started.describe()
            assert rank.lines("synced") == ["2"], started.describe()
            assert rank.lines("done"), started.describe()
        assert started[0].lines("saved") == ["True"], started.describe()
