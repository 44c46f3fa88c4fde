"""Reports about datagram numbers that are unused or long past."""

import optireduce_testing as native

# Source: kSeenBits of ffi/protocol/path/flow.h.
REMEMBERED = 4096
DATAGRAM_BYTES = 1472


def make_flow():
    return native.Flow(1 << 20, DATAGRAM_BYTES)


def test_the_oldest_number_that_is_remembered_may_still_come():
    receiver = make_flow()
    receiver.record(0.0, REMEMBERED - 1)
    assert not receiver.seen(0)
    receiver.record(0.0, 0)
    assert receiver.seen(0)


def test_an_acknowledgement_of_a_number_that_was_never_used_says_nothing():
    sender, receiver = make_flow(), make_flow()
    used = [sender.track(0.0, cargo, DATAGRAM_BYTES) for cargo in range(3)]
    for number in used:
        receiver.record(0.0, number)
    true_news = receiver.make_acknowledgement(0.0)
    receiver.record(0.0, used[-1] + 1)
    assert (
        sender.handle_acknowledgement(0.001, receiver.make_acknowledgement(0.0)) == []
    )
    deliveries = sender.handle_acknowledgement(0.001, true_news)
    assert deliveries == [(cargo, True) for cargo in range(3)]
