"""A rank that waits in a call that the others never make, while their calls go on."""

import numpy as np
import pytest
from session import Session

MISMATCH_TIMEOUT_S = 2.0
STEP_S = 0.1


def lone(mode: str = "bounded", world_size: int = 3) -> Session:
    """Ranks in step, of which rank 0 then waits in a call of its own."""
    session = Session(
        world_size,
        mode,
        mismatch_timeout_s=MISMATCH_TIMEOUT_S,
    )
    for step in range(3):
        steps(session, range(world_size), step)
    submit_metric(session, 0)
    return session


def submit_metric(session: Session, rank: int) -> None:
    array = np.full(8, 1 + rank, np.float32)
    error = session.submit(rank, array, token=1000, name="metric", mode="exact")
    assert error == ""


def steps(session: Session, ranks, *numbers: int, step_s: float = STEP_S) -> None:
    """These ranks make these calls, one after the other."""
    for number in numbers:
        for rank in ranks:
            session.call(rank, number)
        session.run(step_s)


def metric_error(session: Session, rank: int) -> str | None:
    done = session.done[rank].get(1000)
    return done and done.error


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_ranks_that_pass_by_a_call_tell_it_and_its_rank_fails_by_naming_both(mode):
    session = lone(mode)
    steps(session, (1, 2), *range(3, 3 + round(1.5 * MISMATCH_TIMEOUT_S / STEP_S)))
    for rank in (1, 2):
        notice = session.ranks[rank].poll_lone_call()
        assert notice is not None
        waiting, theirs, ours, waited, limit = notice
        assert waiting == 0
        assert theirs.startswith("call 0 of metric")
        assert " of x: float32" in ours
        assert MISMATCH_TIMEOUT_S <= waited < 2 * MISMATCH_TIMEOUT_S
        assert limit == 6 * MISMATCH_TIMEOUT_S
        assert session.ranks[rank].poll_lone_call() is None
    assert metric_error(session, 0) is None
    steps(session, (1, 2), *range(40, 40 + round(6 * MISMATCH_TIMEOUT_S / STEP_S)))
    error = metric_error(session, 0)
    assert error is not None
    assert "the ranks disagree" in error
    assert "rank 0 waits in call 0 of metric" in error
    assert " of x: float32" in error
    # The others are in no such call, and go on.
    assert all(not done.error for done in session.done[1].values())


def test_a_rank_that_computes_for_long_ends_no_call_of_the_others():
    session = lone()
    steps(session, (1, 2), 3, step_s=20 * MISMATCH_TIMEOUT_S)
    for rank in (1, 2):
        submit_metric(session, rank)
    session.run(1)
    assert metric_error(session, 0) == ""
    assert session.ranks[1].poll_lone_call() is None


def test_a_rank_that_comes_back_and_makes_all_its_steps_ends_no_call_of_the_others():
    session = Session(3, "bounded", mismatch_timeout_s=MISMATCH_TIMEOUT_S)
    ahead = 100
    # Rank 2 has not begun; the others come to their metric.
    steps(session, (0, 1), *range(ahead))
    for rank in (0, 1):
        submit_metric(session, rank)
    session.run(1)
    # It makes the steps before the metric alone, under numbers of its own.
    steps(session, (2,), *range(ahead), step_s=12 * MISMATCH_TIMEOUT_S / ahead)
    submit_metric(session, 2)
    session.run(1)
    assert [metric_error(session, rank) for rank in range(3)] == ["", "", ""]
    assert session.ranks[2].poll_lone_call() is None


def test_a_rank_that_is_paused_in_its_call_ends_no_call_of_the_others():
    session = lone()
    session.silent.add(0)
    steps(session, (1, 2), *range(3, 20), step_s=1)
    session.silent.remove(0)
    for rank in (1, 2):
        submit_metric(session, rank)
    session.run(5)
    assert [metric_error(session, rank) for rank in range(3)] == ["", "", ""]


def test_ranks_without_the_waiting_one_are_not_asked():
    session = Session(3, "bounded", mismatch_timeout_s=MISMATCH_TIMEOUT_S)
    submit_metric(session, 0)
    # They make no call with it.
    session.run(10 * MISMATCH_TIMEOUT_S)
    assert metric_error(session, 0) is None
    assert session.ranks[1].poll_lone_call() is None
