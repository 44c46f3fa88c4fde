"""Outgoing datagrams: the turns of the peers, announcements, farewells."""

from session_parts import ANNOUNCEMENT, Parts

RANKS = 4


def receivers(parts, now=1.0, most=100):
    """Polls until nothing is left; returns the receivers in order."""
    polled = []
    while len(polled) < most and (to := parts.poll_transmit(now)) is not None:
        polled.append(to)
    return polled


def test_without_data_nothing_is_sent():
    assert receivers(Parts(RANKS)) == []


def test_an_announcement_goes_to_every_other_member():
    parts = Parts(RANKS)
    x = parts.collective("bounded")
    parts.announce_call((x, 7))
    for rank in range(1, RANKS):
        assert parts.control(rank) == [(ANNOUNCEMENT, (x, 7))]
    assert receivers(parts) == [1, 2, 3]
    assert receivers(parts) == []


def test_peers_take_turns():
    parts = Parts(RANKS)
    for _ in range(2):
        for rank in (1, 2, 3):
            parts.probe(rank)
    assert receivers(parts) == [1, 2, 3, 1, 2, 3]


def test_the_next_turn_is_that_of_the_next_peer():
    parts = Parts(RANKS)
    for rank in (1, 2, 3):
        parts.probe(rank)
    assert receivers(parts, most=2) == [1, 2]
    parts.probe(1)
    assert receivers(parts) == [3, 1]


def test_a_peer_that_is_gone_gets_no_announcement():
    parts = Parts(RANKS)
    x = parts.collective("bounded")
    parts.mark_left(2)
    parts.announce_call((x, 0))
    assert parts.control(2) == []
    assert receivers(parts) == [1, 3]


def test_a_farewell_goes_to_every_peer_once():
    parts = Parts(RANKS)
    parts.leave_transmitter()
    assert receivers(parts) == [1, 2, 3]
    assert receivers(parts) == []
