"""Each checker of the simulator alone: what it permits, and what it finds."""

import pytest

import optireduce_testing as native

EXACT = "ranks=3 calls=4 elements=30 mode=exact"
LOSSY = "ranks=3 calls=4 elements=30 mode=lossy reduce_scatter_deadline_us=20000"
EMPTY = "ranks=5 calls=4 elements=30 mode=bounded absent=2"
STOPPED = "ranks=5 calls=4 elements=30 mode=bounded stop_at_us=1000 stop_rank=2"


def test_leaves_that_nobody_else_writes_pass():
    run = native.CheckedRun(EXACT)
    token = run.submit(0.0, 0)
    run.write(token, 0)
    run.end_leaves(0.1, token)
    run.finish_leaves(0.2)
    assert run.failure == ""


@pytest.mark.parametrize("at", [-1, -64])
def test_a_byte_beside_a_leaf_is_found(at):
    run = native.CheckedRun(EXACT)
    token = run.submit(0.0, 0)
    run.write(token, at)
    run.end_leaves(0.1, token)
    assert "bytes beside a leaf were written" in run.failure


def test_a_leaf_that_changes_after_its_call_is_found():
    run = native.CheckedRun(EXACT)
    token = run.submit(0.0, 1)
    run.end_leaves(0.1, token)
    run.write(token, 0)
    run.finish_leaves(0.2)
    assert "rank 1: a leaf was written after its call had ended: call 0" in run.failure


@pytest.mark.parametrize(
    ("error", "missing", "found"),
    [
        (0.0, 0.0, ""),
        (1.0, 0.0, "element 0 is"),
        (0.0, 0.5, "its stats report missing_contributions=0.5"),
    ],
)
def test_an_exact_result_is_the_sum_and_whole(error, missing, found):
    run = native.CheckedRun(EXACT)
    run.check_result(0.1, run.submit(0.0, 0), error, missing)
    assert found in run.failure
    assert bool(found) == bool(run.failure)


@pytest.mark.parametrize(("took", "found"), [(0.03, ""), (0.05, "its deadline is")])
def test_a_lossy_call_ends_by_its_deadlines(took, found):
    run = native.CheckedRun(LOSSY)
    run.check_time(took, run.submit(0.0, 0), took)
    assert found in run.failure
    assert bool(found) == bool(run.failure)


def test_stats_that_give_another_time_are_found():
    run = native.CheckedRun(EXACT)
    run.check_time(0.03, run.submit(0.0, 0), 0.01)
    assert "its stats say 10.000000 ms" in run.failure


def test_an_exact_call_may_wait_for_a_rank_that_has_not_called():
    run = native.CheckedRun("ranks=2 calls=1 elements=30 mode=exact")
    token = run.submit(0.0, 0)
    run.submit(50.0, 1)
    run.check_time(50.5, token, 50.5)
    assert run.failure == ""
    run.check_time(60.0, token, 60.0)
    assert "it had to wait for the network only" in run.failure


EXACT_STOPPED = "ranks=2 calls=4 elements=30 mode=exact stop_at_us=1000 stop_rank=1"


@pytest.mark.parametrize(
    ("now", "message", "found"),
    [
        (3.1, "rank 1 has been silent", ""),
        (3.1, "rank 10 has been silent", "without naming a member that is gone"),
        (1.0, "rank 1 has been silent", "before peer_timeout"),
        (9.0, "rank 1 has been silent", "later than peer_timeout allows"),
    ],
)
def test_an_error_names_the_rank_that_is_gone_once_it_was_silent(now, message, found):
    run = native.CheckedRun(EXACT_STOPPED)
    token = run.submit(0.0, 0)
    run.poll(0.0, 0, 1, 100)
    run.hear(0.001, 0, 1)
    run.poll(0.001, 0, 1, 100)
    run.stop(0.001, 1)
    run.check_error(now, token, message)
    assert found in run.failure
    assert bool(found) == bool(run.failure)


def test_no_error_is_permitted_where_no_rank_is_gone():
    run = native.CheckedRun(EXACT)
    run.check_error(9.0, run.submit(0.0, 0), "rank 1 has been silent")
    assert "without naming a member that is gone" in run.failure


def test_a_rank_that_was_silent_may_be_removed():
    run = native.CheckedRun(STOPPED)
    run.stop(0.001, 2)
    run.note_view(4.0, 0, [0, 1, 3, 4])
    run.note_view(4.1, 1, [0, 1, 3, 4])
    assert run.failure == ""


def test_the_removal_of_a_rank_that_answers_is_found():
    run = native.CheckedRun(STOPPED)
    run.note_view(4.0, 0, [0, 1, 2, 4])
    assert "rank 3 was removed, though it was there" in run.failure


def test_two_views_of_which_none_holds_the_other_are_found():
    run = native.CheckedRun(STOPPED)
    run.stop(0.001, 2)
    run.note_view(4.0, 0, [0, 1, 3, 4])
    run.note_view(4.1, 2, [0, 2, 3, 4])
    assert "the ranks go on in two groups" in run.failure


def test_ranks_that_go_on_with_one_whose_place_is_empty_are_found():
    run = native.CheckedRun(EMPTY)
    run.note_view(0.0, 0, [0, 2, 3, 4])
    assert run.failure == ""
    run.note_view(0.1, 0, [0, 1, 2, 3, 4])
    assert "the ranks go on with one whose place is empty" in run.failure


def test_a_transmit_to_an_empty_place_is_found():
    run = native.CheckedRun(EMPTY)
    run.poll(0.0, 0, 2, 100)
    assert run.failure == ""
    run.poll(0.0, 0, 1, 100)
    assert "a transmit goes nowhere" in run.failure


@pytest.mark.parametrize(("to", "size"), [(0, 100), (1, 0), (1, 9000)])
def test_a_transmit_to_nowhere_or_of_a_wrong_size_is_found(to, size):
    run = native.CheckedRun(EXACT)
    run.poll(0.0, 0, 1, 1472)
    assert run.failure == ""
    run.poll(0.0, 0, to, size)
    assert (
        "a transmit goes nowhere, is empty, or has too large datagrams" in run.failure
    )
