"""A lying member may spoil sums and calls, but not the process or its memory."""

import numpy as np
import pytest
from session import SECRET, sealer_of

import optireduce_testing as native

SESSION = 77
ANNOUNCEMENT, WAITING, GAVE_UP = 4, 8, 9
CONTRIBUTION, RESULT = 1, 2


def collective(elements, name="x", text=None):
    description = name if text is None else text
    return native.Collective(
        name, members=[0, 1], elements=elements, description=description
    )


class Liar:
    """Rank 1 of 2: it has the right keys, and sends arbitrary data to rank 0."""

    def __init__(self):
        self.victim = native.Endpoint(0, 2, SECRET)
        self.sealer = sealer_of(1, SESSION)
        self.number = 0

    def send(self, kind, payload, *, flags=0, call=(0, 0), segment=0, contributors=0):
        header = native.encode_header(
            native.Header(
                kind=kind,
                flags=flags,
                source=1,
                session=SESSION,
                collective=call[0],
                sequence=call[1],
                segment=segment,
                number=self.number,
                contributors=contributors,
            )
        )
        content, tag = self.sealer.seal(self.number, header + payload)
        self.number += 1
        self.victim.handle_datagram(0.0, content + tag)

    def announce(
        self,
        *,
        sent_as=ANNOUNCEMENT,
        sequence=0,
        elements=10,
        name="x",
        kind=0,
        text=None,
    ):
        """Announces a collective under its correct identity, and returns that."""
        payload = bytearray(
            native.encode_announcement(collective(elements, name, text), 1000)
        )
        payload[8] = kind
        number = native.announcement_id(bytes(payload), 2)
        self.send(sent_as, bytes(payload), call=(number, sequence))
        return number


@pytest.mark.parametrize("elements", [2**37, 2**37 + 1, 2**48, 2**63])
def test_a_bucket_beyond_all_memory_is_refused(elements):
    liar = Liar()
    if elements > 2**37:
        number = 0
        payload = native.encode_announcement(collective(elements), 1000)
        liar.send(ANNOUNCEMENT, payload)
        assert liar.victim.counters()["rejected_malformed"] == 1
    else:
        number = liar.announce(elements=elements)
        assert liar.victim.counters()["datagrams_received"] == 1
    liar.send(CONTRIBUTION, bytes(400), call=(number, 0))
    assert liar.victim.counters()["rejected_early"] == 1
    assert liar.victim.memory_bytes() == 0


def test_reports_of_waiting_are_answered_once_until_the_answer_has_left():
    liar = Liar()
    array = np.ones(10, np.float32)
    liar.victim.submit(0.0, collective(10), array)
    liar.victim.cancel(0.0, "by the test")
    for _ in range(1000):
        liar.announce(sent_as=WAITING)
    sent = 0
    while (transmit := liar.victim.poll_transmit(0.0, 8)) is not None:
        sent += len(transmit[1])
    assert sent < 10


@pytest.mark.parametrize("text", ["", " has stopped with this error: ", "rank 1"])
def test_a_reason_of_any_form_ends_the_call_and_nothing_else(text):
    liar = Liar()
    array = np.ones(10, np.float32)
    liar.victim.submit(0.0, collective(10), array, token=7)
    liar.announce(sent_as=GAVE_UP, text=text)
    done = liar.victim.poll_event()
    assert done.token == 7
    assert done.error.endswith(f"rank 1 has stopped with this error: {text}")
