"""What is late, and sent again, where late data is carried."""

import numpy as np
from endpoints import DEADLINE_S, JUST_S, Recorded

CONTRIBUTION, ACKNOWLEDGEMENT = 1, 3
REPAIR = 64  # Of wire.h.


def test_what_comes_before_its_segment_is_closed_for_a_peer_is_in_the_sum():
    net = Recorded(3, "bounded")
    closes = net.now + DEADLINE_S / 2
    net.holds = (CONTRIBUTION, 2, 0)
    for rank in range(3):
        net.call(rank)
    net.until(closes - JUST_S)
    net.now = closes
    for rank in net.ranks:
        rank.handle_timeout(closes)
    assert net.expired(0) == 1
    # Before anything of that has left.
    for _, datagram in net.held:
        net.ranks[0].handle_datagram(closes, datagram)
    net.holds = None
    net.run(DEADLINE_S)
    for rank in range(3):
        assert net.done[rank][0][:3] == ("", 0, 0)
        np.testing.assert_array_equal(net.buckets[rank, 0], 6)


def test_a_sum_of_all_shows_that_its_owner_has_what_it_never_acknowledged():
    net = Recorded(2, "bounded")
    net.holds = (ACKNOWLEDGEMENT, 1, 0)
    for rank in range(2):
        net.call(rank)
    net.run(0.001)
    assert net.done[0][0][:3] == ("", 0, 0)
    # Its sums may not have arrived; its contributions have.
    assert net.ranks[0].last_stats()["in_flight"] == 0.5
    assert net.held


def test_what_was_sent_before_says_so():
    net = Recorded(2, "exact")
    net.holds = (CONTRIBUTION, 0, 1)
    net.call(0)
    net.run(0.001)
    net.release(lose=True)
    net.call(1)
    net.run(1.0)
    assert set(net.done[0]) == set(net.done[1]) == {0}
    contributions = [(header[7], header[2]) for header in net.of(0, CONTRIBUTION, 0)]
    flags: dict[int, list[bool]] = {}
    for segment, of_it in contributions:
        flags.setdefault(segment, []).append(of_it & REPAIR != 0)
    assert flags
    assert all(first is False for first, *_ in flags.values())
    assert all(again == [True] for _, *again in flags.values())


def test_a_contribution_that_is_sent_again_holds_no_errors_of_later_calls():
    net = Recorded(2, "bounded", elements=3000, wire_format="bfloat16")
    given = np.random.default_rng(1).normal(size=(4, 2, net.elements))
    given = given.astype(np.float32)
    total = np.zeros((2, net.elements))

    def call(sequence, seconds):
        drain = sequence == len(given)
        for rank in range(2):
            values = None if drain else given[sequence, rank]
            net.call(rank, sequence, drain=drain, values=values)
        net.run(seconds)

    # All contributions of rank 0 to the first call are lost, and all that say so.
    net.holds = (CONTRIBUTION, 0, 1)
    call(0, DEADLINE_S + JUST_S)
    assert net.done[0].keys() == net.done[1].keys() == {0}
    net.release(lose=True)
    # What is new goes before what is sent again.
    for sequence in range(1, len(given) + 1):
        call(sequence, 1.0)
    for rank in range(2):
        for sequence in range(len(given) + 1):
            assert net.done[rank][sequence][0] == ""
            total[rank] += net.buckets[rank, sequence]
        np.testing.assert_allclose(total[rank], given.sum((0, 1)), atol=1e-4)
    again = [header for header in net.of(0, CONTRIBUTION, 0) if header[2] & REPAIR]
    new = net.sent.index(net.of(0, CONTRIBUTION, 1)[0])
    assert any(net.sent.index(header) > new for header in again)
