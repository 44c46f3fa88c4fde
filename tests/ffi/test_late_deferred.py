"""Late and retransmitted data in modes that defer."""

import numpy as np
from session import Recorded

CONTRIBUTION, ACKNOWLEDGEMENT = 1, 3
REPAIR = 64  # The value in wire.h.
DEADLINE_S = 0.1  # both stages together
JUST_S = 1e-6


def is_whole(done) -> bool:
    """True if a call succeeded without missing data."""
    missing = done.missing_contributions, done.missing_results
    return (done.error, missing) == ("", (0, 0))


def test_what_comes_before_its_segment_is_closed_for_a_peer_is_in_the_sum():
    session = Recorded(3, "bounded")
    closes = session.now + DEADLINE_S / 2
    session.hold(CONTRIBUTION, 2, to=0)
    for rank in range(3):
        session.call(rank)
    session.until(closes - JUST_S)
    session.now = closes
    for rank in session.ranks:
        rank.handle_timeout(closes)
    assert session.expired(0) == 1
    # Before any of this has left.
    for _, datagram in session.held:
        session.ranks[0].handle_datagram(closes, datagram)
    session.holds = None
    session.run(DEADLINE_S)
    for rank in range(3):
        assert is_whole(session.done[rank][0])
        np.testing.assert_array_equal(session.buckets[rank, 0], 6)


def test_a_sum_of_all_shows_that_its_owner_has_what_it_never_acknowledged():
    session = Recorded(2, "bounded")
    session.hold(ACKNOWLEDGEMENT, 1, to=0)
    for rank in range(2):
        session.call(rank)
    session.run(0.001)
    assert is_whole(session.done[0][0])
    # Its sums may not have arrived; its contributions have.
    assert session.done[0][0].in_flight == 0.5
    assert session.held


def test_what_was_sent_before_says_so():
    session = Recorded(2, "exact")
    session.hold(CONTRIBUTION, 0, to=1)
    session.call(0)
    session.run(0.001)
    session.lose()
    session.call(1)
    session.run(1.0)
    assert set(session.done[0]) == set(session.done[1]) == {0}
    flags: dict[int, list[bool]] = {}
    for header in session.of(0, CONTRIBUTION, 0):
        flags.setdefault(header.segment, []).append(header.flags & REPAIR != 0)
    assert flags
    assert all(first is False for first, *_ in flags.values())
    assert all(again == [True] for _, *again in flags.values())


def test_a_contribution_that_is_sent_again_holds_no_errors_of_later_calls():
    session = Recorded(2, "bounded", elements=3000, wire_format="bfloat16")
    given = np.random.default_rng(1).normal(size=(4, 2, session.elements))
    given = given.astype(np.float32)
    total = np.zeros((2, session.elements))

    def call(sequence, seconds):
        drain = sequence == len(given)
        for rank in range(2):
            values = None if drain else given[sequence, rank]
            session.call(rank, sequence, drain=drain, values=values)
        session.run(seconds)

    # All contributions of rank 0 to the first call are lost, and all reports of them.
    session.hold(CONTRIBUTION, 0, to=1)
    call(0, DEADLINE_S + JUST_S)
    assert session.done[0].keys() == session.done[1].keys() == {0}
    session.lose()
    # New data precedes retransmissions.
    for sequence in range(1, len(given) + 1):
        call(sequence, 1.0)
    for rank in range(2):
        for sequence in range(len(given) + 1):
            assert session.done[rank][sequence].error == ""
            total[rank] += session.buckets[rank, sequence]
        np.testing.assert_allclose(total[rank], given.sum((0, 1)), atol=1e-4)
    sent = [header for header in session.sent if header.source == 0]
    new = sent.index(session.of(0, CONTRIBUTION, 1)[0])
    again = [
        header for header in session.of(0, CONTRIBUTION, 0) if header.flags & REPAIR
    ]
    assert any(sent.index(header) > new for header in again)
