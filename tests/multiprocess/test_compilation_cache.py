"""Programs of JAX's persistent compilation cache compute what they did before."""

import ranks

MODES = 4


def test_programs_of_the_compilation_cache_run_in_another_session(tmp_path):
    for run in ("first", "second"):
        folder = tmp_path / run
        folder.mkdir()
        with ranks.start(
            *("cached", str(tmp_path / "cache")),
            folder=folder,
            world_size=2,
            options={"deadline_s": 30},
        ) as started:
            started.succeed()
            # On CPUs JAX has another key on each process, and only process 0 writes.
            found, _, requested = started[0].lines("found")[0].split()
            assert int(requested) >= MODES, started.describe()
            if run == "second":
                assert int(found) >= MODES, started.describe()
