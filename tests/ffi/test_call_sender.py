"""Contributions and sums on their way out."""

import pytest
from call_stages import Call


def test_before_the_program_calls_there_is_nothing_to_send():
    assert Call("exact", submitted=False).next(1) is None


def test_each_owner_gets_its_part_and_later_the_sums():
    call = Call("exact")
    assert call.sent(1) == [("contribution", 2, 3.0), ("contribution", 3, 4.0)]
    assert call.sent(2) == [("contribution", 4, 5.0), ("contribution", 5, 6.0)]
    call.contribute_all(1, 2)
    for to in (1, 2):
        assert call.sent(to) == [("sum", 0, 31.0), ("sum", 1, 32.0)]


def test_a_member_is_served_when_it_has_everything():
    call = Call("exact")
    call.contribute_all(1, 2)
    for kind, segment, _ in call.sent(1):
        assert not call.served(1)
        call.deliver(1, (kind, segment, False))
    assert call.served(1)
    assert not call.served(2)


def test_a_delivery_tells_when_a_stage_is_over_for_the_member():
    call = Call("bounded")
    items = [(kind, segment, False) for kind, segment, _ in call.sent(1)]
    assert [call.deliver(1, item) for item in items] == [False, True]


@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_a_lost_segment_is_sent_again_with_the_same_value(mode):
    call = Call(mode)
    call.sent(1)
    assert call.lose(1, ("contribution", 2, True)) == "again"
    assert call.next(1) == ("contribution", 2, True)
    assert call.sent(1) == [("contribution", 2, 3.0)]
    assert call.retransmitted == 1


def test_a_refused_segment_is_no_loss():
    call = Call("exact")
    call.sent(1)
    assert call.lose(1, ("contribution", 2, True), refused=True) == "again"
    assert call.retransmitted == 0


def test_a_delivered_segment_needs_no_retransmission():
    call = Call("bounded")
    call.sent(1)
    call.deliver(1, ("contribution", 2, False))
    assert call.lose(1, ("contribution", 2, True)) == "not needed"


def test_few_peers_at_a_time_get_contributions():
    call = Call("exact")
    call.set_incast(1)
    first = 1 if call.next(1) else 2
    other = 3 - first
    assert call.next(other) is None
    assert call.held_back(other)
    call.sent(first)
    assert call.next(other) is not None


def test_a_stalled_peer_takes_no_turn():
    call = Call("exact")
    call.set_incast(1)
    first = 1 if call.next(1) else 2
    call.set_stalled(first, True)
    assert call.next(3 - first) is not None


def test_a_peer_that_is_gone_is_served():
    call = Call("exact")
    call.sent(1)
    call.release(1)
    assert call.served(1)


def test_data_is_in_flight_until_it_is_acknowledged():
    call = Call("bounded")
    before = call.in_flight
    assert before > 0
    for to in (1, 2):
        for kind, segment, _ in call.sent(to):
            call.deliver(to, (kind, segment, False))
    assert call.in_flight < before
