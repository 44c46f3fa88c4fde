"""The state of peers for a user, as an endpoint reports it."""

import pytest
from session import Recorded, Session

_CONTRIBUTION, _RESULT = 1, 2

# States.
_ALIVE = 0
_SILENT = 2


def test_a_peer_is_behind_in_calls_that_it_has_not_entered():
    session = Session(3)
    for sequence in range(3):
        session.call(0, sequence)
    session.run(0.1)
    never_called = {1: 1, 2: 1}
    assert behind(session, 0) == never_called
    session.call(1, 0)
    session.run(0.1)
    assert behind(session, 0) == {1: 2, 2: 1}
    for sequence in (1, 2):
        session.call(1, sequence)
    session.run(0.1)
    assert behind(session, 0) == {1: 0, 2: 1}
    assert behind(session, 2) == {0: 0, 1: 0}


def behind(session, rank) -> dict[int, int]:
    """Calls that the peers of a rank are behind it."""
    return {peer: at[2] for peer, at in session.ranks[rank].peers().items()}


def test_a_rank_without_a_shard_does_not_take_its_peers_for_late():
    session = Session(3, elements=1)
    for sequence in range(4):
        for rank in range(3):
            session.call(rank, sequence)
        session.run(0.1)
    assert [behind(session, rank) for rank in range(3)] == [
        {1: 0, 2: 0},
        {0: 0, 2: 0},
        {0: 0, 1: 0},
    ]


def test_a_peer_that_was_never_heard_has_no_time():
    session = Session(3, peer_timeout_s=5.0)
    session.silent = {2}
    session.call(0)
    session.call(1)
    session.run(1.0)
    peers = session.ranks[0].peers()
    assert peers[2] == (_ALIVE, None, 1)
    assert peers[1][1] == pytest.approx(session.now, abs=1.0)
    session.run(10.0)
    assert session.ranks[0].peers()[2][0] == _SILENT


def test_traffic_is_counted_by_peer_and_adds_up():
    session = Session(3)
    for rank in range(3):
        session.call(rank)
    session.run(1.0)
    for rank, endpoint in enumerate(session.ranks):
        others = [endpoint.traffic(peer) for peer in range(3) if peer != rank]
        counters = endpoint.counters()
        for name in ("bytes_sent", "bytes_received"):
            assert sum(traffic[name] for traffic in others) == counters[name] > 0
        assert all(traffic["segments_sent"] > 0 for traffic in others)
    sent = session.ranks[0].traffic(1)
    assert sent["segments_sent"] == session.ranks[1].traffic(0)["segments_received"]
    assert sent["segments_retransmitted"] == 0


def test_loss_is_that_of_one_link():
    session = Recorded(3)
    session.hold(_CONTRIBUTION, 0, to=1)
    for rank in range(3):
        session.call(rank)
    session.run(0.001)
    lost = len(session.held)
    assert lost > 0
    session.lose()
    session.run(2.0)
    assert all(session.done)
    assert session.ranks[0].traffic(1)["segments_retransmitted"] == lost
    assert session.ranks[0].traffic(2)["segments_retransmitted"] == 0


def test_late_segments_are_those_of_one_peer():
    session = Recorded(3, "lossy")
    session.hold(_RESULT, 0, to=2)
    session.call(0)
    session.call(1)
    session.run(1.0)
    assert session.held
    session.release()
    session.run(0.001)
    late = session.ranks[2].counters()["segments_late"]
    assert late > 0
    assert session.ranks[2].traffic(0)["segments_late"] == late
    assert session.ranks[2].traffic(1)["segments_late"] == 0
