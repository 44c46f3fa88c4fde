"""Calls that one rank ends or never makes, and ranks that answer without calling."""

import numpy as np
import pytest
from session import Session

import optireduce_testing as native


def ones() -> np.ndarray:
    return np.ones(10, np.float32)


def all_call(session: Session, sequence: int) -> None:
    arrays = [ones() for _ in session.ranks]
    for rank, array in enumerate(arrays):
        assert session.submit(rank, array, sequence=sequence) == ""
    session.run(0.5)
    for rank, array in enumerate(arrays):
        assert session.done[rank][sequence].error == ""
        np.testing.assert_array_equal(array, len(session.ranks))


@pytest.mark.parametrize("waits_first", [True, False])
def test_a_call_that_a_rank_never_makes_ends_on_the_others(waits_first):
    session = Session(3)
    all_call(session, 0)
    if not waits_first:
        session.give_up(0, 10, sequence=1)
        session.run(0.1)
    for rank in (1, 2):
        session.submit(rank, ones(), sequence=1)
    session.run(0.1)
    if waits_first:
        assert 1 not in session.done[1]
        session.give_up(0, 10, sequence=1)
        session.run(0.1)
    for rank in (1, 2):
        message = session.done[rank][1].error
        assert "call 1 of x: float32[10] cannot be completed" in message
        assert "rank 0 has stopped with this error: interrupted" in message
    all_call(session, 2)
    assert all(endpoint.memory_bytes() == 0 for endpoint in session.ranks)


def test_a_first_call_that_is_never_made_ends_on_the_others():
    session = Session(2)
    session.give_up(0, 10, sequence=0)
    session.run(0.1)
    session.submit(1, ones())
    session.run(0.1)
    assert "interrupted" in session.done[1][0].error
    all_call(session, 1)


def test_a_rank_that_is_hundreds_of_calls_behind_learns_of_each():
    session = Session(2)
    all_call(session, 0)
    count = 300
    for sequence in range(1, count):
        if sequence % 2 == 0:
            session.give_up(0, 10, sequence=sequence)
        else:
            session.submit(0, ones(), sequence=sequence)
            session.ranks[0].cancel(session.now, "interrupted")
        if sequence == count // 2:
            session.run(0.1)
    session.run(0.1)
    sent = session.ranks[0].counters()["datagrams_sent"]
    assert sent < count / 2, "one announcement tells of many calls"
    for sequence in range(1, count):
        session.submit(1, ones(), sequence=sequence)
        assert "interrupted" in (session.done[1] | collected(session))[sequence].error
    session.run(0.1)
    all_call(session, count)


def collected(session: Session) -> dict[int, native.CallDone]:
    session.collect()
    return session.done[1]


def test_what_is_lost_of_the_news_is_told_again():
    session = Session(2)
    all_call(session, 0)
    session.give_up(0, 10, sequence=1)
    session.collect()
    session.wire.clear()
    session.submit(1, ones(), sequence=1)
    session.run(3.0)
    assert "interrupted" in session.done[1][1].error


def test_a_refused_call_is_told_to_ranks_that_could_have_made_it():
    session = Session(3, peer_timeout_s=1.0)
    all_call(session, 0)
    session.silent = {2}
    for rank in (0, 1):
        session.submit(rank, ones(), sequence=1)
    session.run(2.0)
    session.silent = set()
    # Rank 0 has given up rank 2, and refuses; then rank 2 is heard again.
    assert "rank 2" in session.submit(0, ones(), sequence=2)
    for rank in (1, 2):
        session.submit(rank, ones(), sequence=2)
    session.run(5.0)
    assert "silent" in session.done[2][2].error


def test_a_call_number_that_one_rank_jumps_over_is_a_disagreement():
    session = Session(2, mismatch_timeout_s=1.0)
    all_call(session, 0)
    session.submit(1, ones(), sequence=6)
    session.run(0.1)
    session.submit(0, ones(), sequence=5)
    session.run(5.0)
    for rank, token in ((0, 5), (1, 6)):
        message = session.done[rank][token].error
        assert "call 5 of x" in message
        assert "call 6 of x" in message


def test_a_rank_that_answers_and_does_not_call_is_named_after_the_call_timeout():
    session = Session(3, call_timeout_s=20.0, peer_timeout_s=2.0)
    all_call(session, 0)
    for rank in (0, 1):
        session.submit(rank, ones(), sequence=1)
    session.run(19.9)
    assert all(1 not in done for done in session.done)
    session.run(0.2)
    texts = [session.done[rank][1].error for rank in (0, 1)]
    assert all(
        "has waited 20.0 s (call_timeout_s) for rank 2" in text for text in texts
    )
    assert any("it last called call 0 of x: float32[10], 20." in text for text in texts)
    # The blocked rank learns the reason, and then all continue.
    session.submit(2, ones(), sequence=1)
    session.run(0.1)
    assert "has waited 20.0 s (call_timeout_s) for rank 2" in session.done[2][1].error
    all_call(session, 2)


def test_a_rank_that_was_never_heard_is_named_after_the_call_timeout():
    session = Session(2, call_timeout_s=1.0, peer_timeout_s=20.0)
    session.silent = {1}
    session.submit(0, ones())
    session.run(1.1)
    error = session.done[0][0].error
    assert "rank 1 (never heard, it has called nothing)" in error


def test_without_a_call_timeout_a_call_waits_for_ever():
    session = Session(2, call_timeout_s=0.0)
    session.submit(0, ones())
    session.run(10_000.0)
    assert session.done[0] == {}


def test_ranks_leave_after_calls_that_followed_a_disagreement():
    session = Session(3, peer_timeout_s=4.0, mismatch_timeout_s=2.0)
    session.grow_windows()

    def call(rank, fingerprint, sequence, mode):
        session.submit(
            rank,
            np.ones(3000, np.float32),
            fingerprint=fingerprint,
            sequence=sequence,
            token=10 * fingerprint + sequence,
            mode=mode,
        )

    call(0, 1, 0, "exact")
    # Chosen: one call more than max_lag after the call of the disagreement.
    for sequence in range(4):
        for rank in range(3):
            call(rank, 2, sequence, "bounded")
        session.run(0.0005)
    for rank in session.ranks:
        rank.leave(session.now, "the end")
    session.run(10.0)
    assert all(rank.finished() for rank in session.ranks)
    assert [rank.memory_bytes() for rank in session.ranks] == [0, 0, 0]


@pytest.mark.parametrize("all_at_once", [True, False])
def test_a_bounded_call_that_a_rank_gives_up_keeps_no_other_rank_waiting(all_at_once):
    deadline_s = 0.1  # both stages together
    session = Session(3, "bounded", elements=10, max_lag=2, peer_timeout_s=30.0)
    all_call(session, 0)
    # The fifth call would wait for the lagging program: two calls are accepted ahead of
    # it, and the next call may be two calls old.
    calls = range(1, 7)
    if all_at_once:
        for sequence in calls:
            session.give_up(0, 10, sequence=sequence)
        session.run(0.001)
    for sequence in calls:
        start = session.now
        for rank in (1, 2):
            session.call(rank, sequence)
        if not all_at_once:
            session.give_up(0, 10, sequence=sequence)
        session.until(start + deadline_s + 1e-6)
        for rank in (1, 2):
            assert session.done[rank][sequence].error == ""
