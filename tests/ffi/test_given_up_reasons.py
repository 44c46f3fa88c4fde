"""Records of given-up calls: the calls themselves, each with its own reason."""

import numpy as np
from session import Session


def ones() -> np.ndarray:
    return np.ones(10, np.float32)


def called_once() -> Session:
    """Two ranks that have made call 0."""
    session = Session(2)
    for rank in range(2):
        session.submit(rank, ones())
    session.run(0.1)
    assert [set(done) for done in session.done] == [{0}, {0}]
    return session


def test_a_call_between_two_that_were_given_up_is_made():
    session = called_once()
    session.give_up(0, 10, sequence=1)
    array = ones()
    assert session.submit(0, array, sequence=2) == ""
    session.give_up(0, 10, sequence=3)
    session.run(0.1)
    for sequence in (1, 2, 3):
        session.submit(1, ones(), sequence=sequence)
        session.run(0.1)
    assert "interrupted" in session.done[1][1].error
    assert session.done[0][2].error == session.done[1][2].error == ""
    np.testing.assert_array_equal(array, 2)
    assert "interrupted" in session.done[1][3].error


def test_a_call_before_one_in_which_the_ranks_disagree_was_no_disagreement():
    session = called_once()
    session.give_up(0, 10, sequence=1)
    session.run(0.1)
    for rank, fingerprint in enumerate((1, 2)):
        session.submit(rank, ones(), sequence=2, fingerprint=fingerprint)
    session.run(0.1)
    assert all("the ranks disagree" in done[2].error for done in session.done)
    advice = "Every rank must"
    assert all(advice in done[2].error for done in session.done)
    assert session.submit(1, ones(), sequence=1) == ""
    session.run(0.1)
    assert "call 1 of x" in session.done[1][1].error
    assert advice not in session.done[1][1].error, session.done[1][1].error
