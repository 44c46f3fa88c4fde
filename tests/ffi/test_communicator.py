"""One process's end of a session: its lanes and its calls, on real sockets."""

import pytest

import optireduce_testing as native

# Above the size from which a bucket is split across lanes.
LARGE = 300_000


def connected(ranks, lanes=1):
    session = native.Communicators(ranks, lanes)
    for rank in range(ranks):
        session.connect(rank, ranks)
    return session


def test_a_world_of_one_needs_no_socket_and_keeps_its_values():
    session = native.Communicators(1)
    assert session.ports(0) == 0
    session.connect(0, 1)
    session.submit(0, [1.0, 2.0])
    (end,) = session.ended(1)
    assert (end.error, end.values) == ("", [1.0, 2.0])


@pytest.mark.parametrize("elements", [3, LARGE])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_call_is_one_call_on_however_many_lanes(lanes, elements):
    session = connected(2, lanes)
    assert session.ports(0) == lanes
    for rank in range(2):
        session.submit(rank, [1.0 + rank] * elements)
    for end in session.ended(2):
        assert (end.error, set(end.values)) == ("", {3.0})
    for rank in range(2):
        assert session.counters(rank)["calls_completed"] == 1
        assert session.counters(rank)["calls_failed"] == 0


def test_a_call_before_the_ranks_are_connected_says_what_to_do():
    session = native.Communicators(2)
    session.submit(0, [1.0])
    assert "is not connected yet" in session.ended(1)[0].error
    assert session.counters(0)["calls_failed"] == 1


def test_to_connect_takes_the_addresses_of_all_ranks_and_once():
    session = native.Communicators(2)
    with pytest.raises(ValueError, match="expected 2, got 1"):
        session.connect(0, 1)
    # A failed connect() may be repeated.
    session.connect(0, 2)
    with pytest.raises(RuntimeError, match="may be called once"):
        session.connect(0, 2)


def test_cancelled_calls_end_on_all_lanes_and_later_ones_are_not_concerned():
    session = connected(2, lanes=2)
    session.submit(0, [1.0] * LARGE)
    session.cancel(0, "interrupted")
    assert session.ended(1)[0].error == "interrupted"
    session.submit(1, [1.0] * LARGE)
    assert (
        "rank 0 has stopped with this error: interrupted" in session.ended(2)[1].error
    )
    for rank in range(2):
        session.submit(rank, [1.0] * LARGE, sequence=1)
    assert [end.error for end in session.ended(4)[2:]] == ["", ""]


def test_after_its_end_calls_fail_and_the_peers_know():
    session = connected(2)
    session.close(0, "its program has ended")
    session.close(0, "again")
    session.submit(0, [1.0])
    session.submit(1, [1.0])
    ended = {end.rank: end.error for end in session.ended(2)}
    assert ended[0] == "its program has ended"
    assert "rank 0 has left: its program has ended" in ended[1]
