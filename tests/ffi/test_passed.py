"""Lossy calls that other ranks have passed end at once, unless one rank has not."""

from session import Recorded, Session

DEADLINE_S = 0.1  # both stages together
JUST_S = 1e-6
AHEAD = 3
CONTRIBUTION, ANNOUNCEMENT = 1, 4  # kinds of datagrams


def test_a_call_ends_at_once_when_all_others_but_an_absent_rank_are_past_it():
    session = Session(3, "lossy")
    for rank in range(3):
        session.call(rank)
    session.run(0.5)
    # Rank 2 is absent after some calls without it.
    session.silent = {2}
    for sequence in range(1, 6):
        for rank in range(2):
            session.call(rank, sequence)
        session.run(2 * DEADLINE_S)
    for sequence in range(6, 6 + AHEAD):
        session.call(1, sequence)
        session.run(0.001)
    session.call(0, 6)
    session.collect()
    assert 6 in session.done[0]


def test_a_call_does_not_end_at_once_while_one_other_rank_is_not_past_it():
    session = Session(3, "lossy")
    for rank in range(3):
        session.call(rank)
    session.run(0.5)
    start = session.now
    for sequence in range(1, 1 + AHEAD):
        session.call(1, sequence)
        session.run(0.001)
    session.call(0, 1)
    session.until(start + DEADLINE_S / 4)
    assert 1 not in session.done[0]
    session.until(start + DEADLINE_S + JUST_S)
    assert 1 in session.done[0]


def test_a_rank_behind_gets_one_answer_however_many_calls_it_asks_for():
    session = Recorded(2, "lossy", elements=2)
    session.hold(CONTRIBUTION, 1)
    for sequence in range(9):
        for rank in range(2):
            session.call(rank, sequence)
        session.run(2 * DEADLINE_S)
    late = [datagram for _, datagram in session.held]
    session.lose()
    session.sent.clear()
    for datagram in late:
        session.ranks[0].handle_datagram(session.now, datagram)
    session.collect()
    answers = [
        header.sequence for header in session.sent if header.kind == ANNOUNCEMENT
    ]
    assert answers == [8]
