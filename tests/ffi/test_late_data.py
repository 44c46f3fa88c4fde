"""The fate of late data, in each mode.

Two ranks with a bucket of four values each: rank 0 reduces the first two, rank 1 the
others. The data from rank 1 to rank 0 is held back beyond the deadline.
"""

import numpy as np
import pytest
from session import Session

CONTRIBUTION, RESULT = 1, 2
DEADLINE_S = 0.1  # both stages together
ALL = 3.0  # the sum of both contributions


def session_of(mode: str, late: int) -> Session:
    """Both ranks have made call 0, with ones and twos; holds datagrams of a kind."""
    session = Session(2, mode, elements=4, peer_timeout_s=60.0)
    session.holds = lambda header, _: (header.kind, header.source) == (late, 1)
    for rank in range(2):
        session.call(rank, values=np.full(4, 1.0 + rank, np.float32))
    session.run(2 * DEADLINE_S)
    return session


def go_on(session: Session, *, drain: bool = True) -> None:
    """Releases the held datagrams, and makes a call with zero contributions."""
    session.release()
    for rank in range(2):
        session.call(rank, 1, drain=drain, values=np.zeros(4, np.float32))
    session.run(5.0)


def totals(session: Session) -> list[np.ndarray]:
    """The total of the two calls on each rank."""
    return [session.buckets[rank, 0] + session.buckets[rank, 1] for rank in range(2)]


@pytest.mark.parametrize("late", [CONTRIBUTION, RESULT])
def test_exact_waits_for_it(late):
    session = session_of("exact", late)
    assert session.done[0] == {}
    session.release()
    session.run(1.0)
    for rank in range(2):
        assert session.done[rank][0].error == ""
        np.testing.assert_array_equal(session.buckets[rank, 0], ALL)


@pytest.mark.parametrize("late", [CONTRIBUTION, RESULT])
def test_bounded_ends_without_it_and_adds_it_to_a_later_call(late):
    session = session_of("bounded", late)
    missing = session.done[0][0]
    if late == CONTRIBUTION:
        # One of two in the half that rank 0 reduces, and none in the other.
        assert missing.missing_contributions == pytest.approx(1 / 4)
        np.testing.assert_array_equal(session.buckets[0, 0], [1, 1, ALL, ALL])
    else:
        assert missing.missing_results == pytest.approx(1 / 2)
        np.testing.assert_array_equal(session.buckets[0, 0], [ALL, ALL, 0, 0])
    go_on(session)
    assert session.done[0][1].deferred > 0
    for total in totals(session):
        np.testing.assert_array_equal(total, ALL)


def test_agreed_adds_a_late_contribution_to_a_later_call_and_all_have_the_same():
    session = session_of("agreed", CONTRIBUTION)
    np.testing.assert_array_equal(session.buckets[0, 0], [1, 1, ALL, ALL])
    go_on(session)
    for total in totals(session):
        np.testing.assert_array_equal(total, ALL)
    for sequence in range(2):
        np.testing.assert_array_equal(
            session.buckets[0, sequence], session.buckets[1, sequence]
        )


def test_agreed_waits_for_a_late_result():
    session = session_of("agreed", RESULT)
    assert session.done[0] == {}
    session.release()
    session.run(1.0)
    np.testing.assert_array_equal(session.buckets[0, 0], ALL)


@pytest.mark.parametrize("late", [CONTRIBUTION, RESULT])
def test_lossy_ends_without_it_and_it_is_lost(late):
    session = session_of("lossy", late)
    done = session.done[0][0]
    assert done.missing_contributions + done.missing_results > 0
    go_on(session, drain=False)
    for rank in range(2):
        np.testing.assert_array_equal(session.buckets[rank, 1], 0)


@pytest.mark.parametrize("mode", ["agreed", "bounded"])
def test_late_data_that_arrives_again_and_again_counts_once(mode):
    session = session_of(mode, CONTRIBUTION)
    session.held *= 3
    go_on(session)
    for total in totals(session):
        np.testing.assert_array_equal(total, ALL)
