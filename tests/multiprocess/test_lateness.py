"""A disturbed rank: the others' calls end, no data is lost, and no rank aborts."""

import signal

import ranks

# The disturbed rank, and those that continue.
_LAST, _OTHERS = 3, (0, 1, 2)


def _start(*arguments, folder, world_size=4, **options):
    # Chosen: a call of the program takes some milliseconds; tests share the machine.
    options = options or {"deadline_s": 0.1}
    return ranks.start(
        "late", *arguments, folder=folder, world_size=world_size, options=options
    )


def _check_conserved(started: ranks.Ranks, *, before_the_drain: bool = True) -> None:
    carried_by_any = 0.0
    for rank in started:
        (line,) = rank.lines("conserved")
        error, carried = map(float, line.split())
        assert error == 0, started.describe()
        carried_by_any += carried
    assert carried_by_any > 0 or not before_the_drain, started.describe()


def _check_others_go_on(started: ranks.Ranks, *, until: int) -> None:
    """The calls of the others end while the last rank is stopped, and it goes on."""
    started.wait_for_stop(_LAST)
    for number in _OTHERS:
        started.wait_for(number, f"call {until}")
    assert not started[_LAST].lines(f"call {until}"), started.describe()
    started[_LAST].process.send_signal(signal.SIGCONT)


def test_a_rank_that_was_stopped_skips_calls_and_is_in_step_again(tmp_path):
    with _start("80", "0.02", "sum", "20", folder=tmp_path) as started:
        _check_others_go_on(started, until=45)
        started.succeed()
        _check_conserved(started)
        (skipped,) = started[_LAST].lines("skipped")
        (over,) = started[_LAST].lines("over")
        # It has missed some 25. Its last calls find the others in the drain.
        assert int(skipped) >= 10, started.describe()
        assert int(over) >= 1, started.describe()
        # A busy machine may delay the others by a call, too.
        assert (
            max(int(*started[r].lines("skipped")) for r in _OTHERS) < int(skipped) / 2
        )


def test_a_mean_counts_each_contribution_once_at_least_and_less_than_twice(tmp_path):
    with _start("80", "0.02", "mean", "20", folder=tmp_path) as started:
        _check_others_go_on(started, until=45)
        started.succeed()
        for rank in started:
            (line,) = rank.lines("weights")
            least, most = map(float, line.split())
            # Sums of thirds are rounded.
            assert 1 - 1e-5 < least <= most < 2, started.describe()
            assert most > 1.01, started.describe()


def test_settings_that_make_much_data_late_are_named(tmp_path):
    with _start(
        "80", "0.05", "sum", folder=tmp_path, world_size=2, deadline_s=0.02
    ) as started:
        started.succeed()
        _check_conserved(started)
        lines = [line for line in started[0].lines("log") if "was late" in line]
        assert len(lines) == 1, started.describe()
        assert "of the data of calls of 'grads" in lines[0]
        assert "deadline_s=0.02" in lines[0]


def test_with_the_defaults_the_others_go_on_while_a_rank_is_stopped(tmp_path):
    # Much longer than the test may take: no rank is removed.
    with _start("60", "0", "sum", "35", folder=tmp_path, peer_timeout_s=600) as started:
        _check_others_go_on(started, until=60)
        started.succeed()
        _check_conserved(started)


def test_calls_that_the_others_have_drained_end_at_once(tmp_path):
    with _start("90", "0", "sum", "20", folder=tmp_path) as started:
        _check_others_go_on(started, until=99)
        started.succeed()
        _check_conserved(started, before_the_drain=False)
        # About 75 calls are left to it, and some pass until it knows the position of
        # the others.
        (over,) = started[_LAST].lines("over")
        assert int(over) > 40, started.describe()
