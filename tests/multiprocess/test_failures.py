"""A failure of one rank is an error on the others, or harmless."""

import re
import signal

import pytest
import ranks


def test_ranks_in_different_calls_get_errors_that_name_both_sides(tmp_path):
    sides = {
        "shape": ("300", "200"),
        "dtype": ("float32", "int32"),
        "mode": ("exact", "lossy"),
        "wire format": ("as bfloat16", "as int8"),
        "name": ("left", "right"),
        "source": (
            "user.py:41 psum",
            "user.py:42 psum",
            "if the ranks run different source files, give it a name=",
        ),
        "count": ("repeated", "something else"),
    }
    options = {"mismatch_timeout_s": 2.0}
    with ranks.start(
        "mismatches", folder=tmp_path, world_size=2, options=options
    ) as started:
        started.succeed()
        for rank in started:
            for case, expected in sides.items():
                (line,) = rank.lines(f"{case} ")
                assert all(side in line for side in expected), line


def test_a_metric_on_rank_0_alone_ends_with_both_names_and_the_others_are_told(
    tmp_path,
):
    with ranks.start(
        "lone_metric",
        folder=tmp_path,
        world_size=3,
        options={"mismatch_timeout_s": 0.5, "deadline_s": 0.3},
    ) as started:
        started.wait_for(0, "error")
        (error,) = started[0].lines("error")
        assert error.startswith("Disagreement 0,"), started.describe()
        assert re.search(r"rank 0 waits in call \d of 'metric'", error)
        assert re.search(r"has gone on to call \d+ of 'grads'", error)
        for rank in started[1:]:
            (told,) = [line for line in rank.lines("log") if "gone on" in line]
            assert told.startswith("rank 0 has waited"), started.describe()
            assert "'metric'" in told
            assert "'grads'" in told


@pytest.mark.parametrize(
    "number", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.long)]
)
def test_exact_call_names_the_rank_that_died(tmp_path, number):
    # Longer than the test may take: process 0 does not wait for a killed rank.
    options = {"shutdown_timeout_s": 10_000} if number == "SIGKILL" else {}
    with ranks.start(
        "dead_peer", "exact", number, folder=tmp_path, world_size=3, options=options
    ) as started:
        started.wait(0, 1)
        for rank in started[:2]:
            assert len(rank.lines("error")) == 1, started.describe()
            (line,) = rank.lines("error")
            assert "rank 2 has been silent for more than 2.0 s" in line, line
            assert rank.code == 0, started.describe()
            assert re.search(r"call 1 of 'grads .* failed after .*rank 2", rank.output)
        assert len(list((tmp_path / ranks.RECORDS).iterdir())) == 2


@pytest.mark.parametrize(
    "number", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.long)]
)
def test_lossy_calls_go_on_without_the_rank_that_died(tmp_path, number):
    with ranks.start(
        "dead_peer", "lossy", number, folder=tmp_path, world_size=3
    ) as started:
        started.wait(0, 1)
        for rank in started[:2]:
            lines = rank.lines("value")
            assert len(lines) == 3, started.describe()
            for line in lines:
                _, missing = map(float, line.split())
                assert missing > 0
            assert rank.code == 0, started.describe()


def test_normal_exit_is_clean_and_quick(tmp_path):
    with ranks.start("endings", "normal", folder=tmp_path, world_size=3) as started:
        started.succeed()
        assert not any("Error" in rank.output for rank in started)
        assert not (tmp_path / ranks.RECORDS).exists()


def test_exception_on_one_rank_ends_the_calls_of_the_others(tmp_path):
    with ranks.start("endings", "exception", folder=tmp_path, world_size=2) as started:
        started.wait()
        assert started[1].code == 1
        assert "rank 1 had enough" in started[1].output
        assert started[0].code == 1, started.describe()
        assert re.search(r"\brank 1\b has (left|stopped)", started[0].output)


def test_exit_with_calls_under_way_does_not_hang(tmp_path):
    with ranks.start(
        "endings", "exit_in_flight", folder=tmp_path, world_size=2
    ) as started:
        started.wait_for(0, "waiting")
        started.wait()
        assert [rank.code for rank in started] == [3, 0], started.describe()


def test_interrupt_ends_a_call_under_way(tmp_path):
    with ranks.start("endings", "interrupt", folder=tmp_path, world_size=2) as started:
        started.wait_for(0, "waiting")
        started.wait_for(1, "waiting")
        started[0].process.send_signal(signal.SIGINT)
        # The other rank is alive and announces no exit: 3 s by the option.
        started.wait(0)
        assert started[0].code in (1, 130, -signal.SIGINT), started.describe()
        assert "KeyboardInterrupt" in started[0].output, started.describe()
