"""All peers of a rank, and which of them may have something to do."""

from session_parts import Parts

RANKS = 5


def quiet_parts():
    parts = Parts(RANKS)
    for rank in range(1, RANKS):
        parts.note_quiet(rank)
    return parts


def test_every_other_rank_may_have_something_at_first():
    parts = Parts(RANKS)
    assert parts.next_to_send(1.0) == 1, "rank 0 is this rank"
    assert parts.next_to_send(1.0, 3) == 3


def test_quiet_peers_are_passed_over():
    parts = quiet_parts()
    assert parts.next_to_send(1.0) == RANKS
    assert parts.next_due(1.0) == RANKS


def test_a_peer_that_was_touched_is_looked_at_again():
    parts = quiet_parts()
    parts.probe(3)
    assert parts.next_to_send(1.0) == 3
    assert parts.next_to_send(1.0, 4) == RANKS


def test_a_peer_with_a_datagram_in_its_queue_is_not_quiet():
    parts = quiet_parts()
    parts.probe(3)
    parts.note_quiet(3)
    assert parts.next_to_send(1.0) == 3
