"""The stages of an allreduce between processes: lateness, loss, several devices."""

import ranks

# Chosen: shorter than the sleep of the last rank, so that its data is always late.
_LATE = {"deadline_s": 0.03}
_SLEEP_S = "0.05"


def _check(started: ranks.Ranks, *, late: bool, bits: bool = True) -> None:
    started.succeed()
    for rank in started:
        lines = [line.split() for line in rank.lines("conserved")]
        assert [mode for mode, *_ in lines] == ["exact", "bounded", "agreed"]
        assert all(float(error) == 0 for _, error, *_ in lines), started.describe()
        assert float(lines[0][2]) == 0, started.describe()
        # XLA changes those of some NaN.
        assert rank.lines("wrong") == ["0"] or not bits, started.describe()
    assert len({rank.lines("gathered")[0] for rank in started}) == 1
    # The others miss the data of the last process, and get it later.
    shares = [
        float(x) for line in started[0].lines("conserved") for x in line.split()[2:]
    ]
    assert any(shares) == late, started.describe()


def test_scattered_sums_of_a_late_rank_are_conserved(tmp_path):
    with ranks.start(
        "scattered", _SLEEP_S, "straight", folder=tmp_path, world_size=3, options=_LATE
    ) as started:
        _check(started, late=True)


def test_devices_of_a_process_get_their_own_parts(tmp_path):
    with ranks.start(
        "scattered", "0", "mixed", folder=tmp_path, world_size=2, devices=2
    ) as started:
        _check(started, late=False)


def test_xla_backend_gives_the_same_values_without_change_of_code(tmp_path):
    options = {"backend": "xla"}
    with ranks.start(
        "scattered", "0", "mixed", folder=tmp_path, world_size=2, options=options
    ) as started:
        _check(started, late=False, bits=False)


def test_scattered_sums_survive_loss_on_several_lanes(tmp_path):
    options = {"faults": "loss=0.05,seed=7", "lanes": 2, "deadline_s": 0.2}
    with ranks.start(
        "scattered", "0", "straight", folder=tmp_path, world_size=4, options=options
    ) as started:
        started.succeed()
        for rank in started:
            errors = [line.split()[1] for line in rank.lines("conserved")]
            assert [float(error) for error in errors] == [0, 0, 0], started.describe()
            assert rank.lines("wrong") == ["0"], started.describe()
