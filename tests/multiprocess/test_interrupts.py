"""SIGINT, and forked processes: calls fail only where Ctrl-C ends the program."""

import pytest
import ranks

# The end of a call by Ctrl-C is in test_failures.py and test_giving_up_processes.py.


def _run(how, folder):
    with ranks.start("interrupted", how, folder=folder, world_size=2) as started:
        started.succeed()
        for rank in started:
            assert rank.lines("failed") == ["0"], started.describe()
        assert started[0].lines("status") == ["answered"], started.describe()
        return started[0]


def test_calls_go_on_where_the_program_has_a_handler_of_its_own(tmp_path):
    assert _run("own handler", tmp_path).lines("received") == ["[2]"]


def test_an_interrupt_of_a_forked_process_is_none_of_its_parent(tmp_path):
    assert _run("forked", tmp_path).lines("child") == ["7"]


def test_a_forked_process_that_fails_leaves_the_session_to_its_parent(tmp_path):
    rank = _run("forked exception", tmp_path)
    assert rank.lines("child") == ["1"], rank.output
    assert "RuntimeError: of the child" in rank.output
    assert "leaked" not in rank.output


@pytest.mark.parametrize(
    "when", [pytest.param("before", marks=pytest.mark.long), "after"]
)
def test_a_wakeup_descriptor_of_the_program_stays_in_force(tmp_path, when):
    rank = _run(f"wakeup {when}", tmp_path)
    assert rank.lines("received") == ["[2]"]
    assert rank.lines("woken") == ["[2]"]
    assert rank.lines("wakeup") == ["True"]
