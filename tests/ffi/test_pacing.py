"""The departure of datagrams and the measurement of paths; times in seconds."""

import pytest
from flows import DATAGRAM_BYTES, make_flow, send_windows

ROUND_TRIP = 0.01


def measured_flow(round_trip: float, until: float, hold: float = 0.0):
    """A flow after one datagram, which was acknowledged `hold` after its arrival."""
    sender, receiver = make_flow(), make_flow()
    start = until - round_trip - hold
    receiver.record(start, sender.track(start, 0, DATAGRAM_BYTES))
    acknowledgement = receiver.make_acknowledgement(start + hold)
    assert sender.handle_acknowledgement(until, acknowledgement) == [(0, True)]
    return sender


def grown_flow():
    """A flow whose window has grown to 128 datagrams, at the time 1.0."""
    sender = make_flow()
    send_windows(sender, make_flow(), range(94, 100), round_trip=ROUND_TRIP)
    return sender


def leave_at_once(flow, now: float) -> int:
    """Sends datagrams, one per batch, as many as may leave now."""
    count = 0
    while flow.may_start(now) and flow.can_send(DATAGRAM_BYTES):
        flow.track(now, count, DATAGRAM_BYTES)
        count += 1
    return count


@pytest.mark.parametrize("hold", [0.0004, 0.004, 0.1])
def test_the_time_that_an_acknowledgement_waited_is_no_part_of_the_path(hold):
    at_once = measured_flow(ROUND_TRIP, until=1.0)
    late = measured_flow(ROUND_TRIP, until=1.0, hold=hold)
    for flow in (at_once, late):
        flow.track(1.0, 1, DATAGRAM_BYTES)
    assert late.timeout() == pytest.approx(at_once.timeout())


def test_a_batch_leaves_when_its_pace_allows_and_not_before():
    flow = grown_flow()
    now = 1.0
    assert 0 < leave_at_once(flow, now) < flow.window_bytes() // DATAGRAM_BYTES
    # The window has room, and pacing does not permit the batch.
    assert flow.can_send(DATAGRAM_BYTES)
    turns = 0
    while flow.can_send(DATAGRAM_BYTES):
        at = flow.timeout()
        assert now < at < now + ROUND_TRIP
        assert not flow.may_start(at - 1e-8)
        flow.handle_timeout(at)
        assert leave_at_once(flow, at) == 1
        now = at
        turns += 1
    assert turns > 10


@pytest.mark.parametrize("pause", [0.002, 0.1, 10.0])
def test_what_a_process_has_missed_while_it_slept_does_not_leave_at_once(pause):
    awake = grown_flow()
    slept = grown_flow()
    # A delay of a millisecond is caught up.
    usual = leave_at_once(awake, 1.001)
    assert 1 < usual < awake.window_bytes() // DATAGRAM_BYTES
    assert leave_at_once(slept, 1.0 + pause) == usual


def test_a_flow_that_waits_for_room_for_more_than_a_datagram_is_limited_by_its_window():
    # A path without pacing; batches never fill the window completely.
    round_trip, batch = 0.00001, 5
    sender, receiver = make_flow(), make_flow()
    now, before = 0.0, sender.window_bytes()
    for _ in range(20):
        sent = []
        while sender.may_start(now):
            sent += [sender.track(now, 0, DATAGRAM_BYTES) for _ in range(batch)]
        for number in sent:
            receiver.record(now, number)
        now += round_trip
        sender.handle_acknowledgement(now, receiver.make_acknowledgement(now))
    assert sender.window_bytes() > 2 * before
