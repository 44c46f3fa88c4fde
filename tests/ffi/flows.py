"""Flows between two ranks; times in seconds."""

import optireduce_testing as native

DATAGRAM_BYTES = 1472


def make_flow(window_bytes_max: int = 1 << 20) -> native.Flow:
    return native.Flow(window_bytes_max, DATAGRAM_BYTES)


def send_windows(
    sender, receiver, rounds: range, loses=lambda _: False, round_trip: float = 1e-3
) -> None:
    """Sends as much as the window allows, in round trips numbered from time zero on.

    Without loss a window of two datagrams doubles in each of the first ones.
    """
    for number_of_round in rounds:
        now = number_of_round * round_trip
        for cargo in range(80):
            if not sender.can_send(DATAGRAM_BYTES):
                break
            number = sender.track(now, cargo, DATAGRAM_BYTES)
            if not loses(number):
                receiver.record(now + round_trip / 2, number)
        now += round_trip
        sender.handle_acknowledgement(now, receiver.make_acknowledgement(now))
