"""The order in which a rank sends its data, and the peers served at a time."""

import numpy as np
import pytest
from session import SECRET, Session, sealer_of

import optireduce_testing as native

CONTRIBUTION, RESULT, ACKNOWLEDGEMENT = 1, 2, 3
SESSION_NUMBER = 77


def test_sums_of_an_older_call_go_before_contributions_to_a_newer_one():
    session = Session(2)
    session.grow_windows()
    arrays = [np.ones(60_000, np.float32) for _ in range(3)]
    session.submit(0, arrays[0])
    session.run(0.5)
    # Rank 0 continues before rank 1 has made the first call, and then receives some
    # data of that call.
    session.submit(0, arrays[1], sequence=1)
    session.submit(1, arrays[2])
    while (transmit := session.ranks[1].poll_transmit(session.now, 8)) is not None:
        for datagram in transmit[1]:
            session.ranks[0].handle_datagram(session.now, datagram)
    sent = []
    while (transmit := session.ranks[0].poll_transmit(session.now, 1)) is not None:
        kind = native.parse_header(transmit[1][0]).kind
        if kind in (CONTRIBUTION, RESULT):
            sent.append(kind)
    sums = sent.count(RESULT)
    assert sums > 2
    assert sent[1 : 1 + sums] == [RESULT] * sums
    assert sent[-1] == CONTRIBUTION


def acknowledgement(incast: int) -> bytes:
    """An acknowledgement of nothing, by a rank that advertises an incast."""
    return bytes(6 + 4) + bytes([incast, 0, 0])


class Sender:
    """Rank 0 of four, whose peers only advertise their incast."""

    def __init__(self, incasts: dict[int, int], mode: str = "lossy"):
        self.rank = native.Endpoint(0, 4, SECRET)
        self.now = 1.0
        self.array = np.ones(400_000, np.float32)
        for peer, incast in incasts.items():
            sealer = sealer_of(peer, SESSION_NUMBER)
            header = native.encode_header(
                native.Header(kind=ACKNOWLEDGEMENT, source=peer, session=SESSION_NUMBER)
            )
            content, tag = sealer.seal(0, header + acknowledgement(incast))
            self.rank.handle_datagram(self.now, content + tag)
        assert self.rank.counters()["datagrams_received"] == len(incasts)
        # More data for each of them than a window holds.
        collective = native.Collective(
            "x",
            members=[0, 1, 2, 3],
            elements=self.array.size,
            mode=mode,
            deadline_s=60.0,
        )
        assert self.rank.submit(self.now, collective, self.array) == ""

    def receivers(self) -> set[int]:
        """The ranks to which it sends contributions now."""
        found = set()
        while (transmit := self.rank.poll_transmit(self.now, 8)) is not None:
            to, datagrams = transmit
            kinds = {native.parse_header(datagram).kind for datagram in datagrams}
            if CONTRIBUTION in kinds:
                found.add(to)
        return found

    def receivers_within(self, seconds: float) -> set[int]:
        """The ranks to which it sends contributions within a time."""
        found = self.receivers()
        end = self.now + seconds
        while (at := self.rank.poll_timeout()) < end:
            self.now = max(self.now, at)
            self.rank.handle_timeout(self.now)
            found |= self.receivers()
        return found


def test_a_rank_sends_to_as_many_at_a_time_as_the_peer_that_takes_the_fewest():
    assert len(Sender({1: 3, 2: 3, 3: 3}).receivers()) == 3
    assert len(Sender({1: 3, 2: 2, 3: 3}).receivers()) == 2
    assert len(Sender({1: 3, 2: 3, 3: 1}).receivers()) == 1
    assert len(Sender({1: 1, 2: 3, 3: 3}).receivers()) == 1


@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded"])
def test_a_rank_sends_to_all_at_a_time_where_lost_data_is_sent_again(mode):
    assert len(Sender({1: 1, 2: 1, 3: 1}, mode).receivers()) == 3


def test_a_peer_that_does_not_answer_does_not_keep_the_turn_of_others():
    sender = Sender({1: 1, 2: 1, 3: 1})
    assert len(sender.receivers()) == 1
    assert sender.receivers_within(5.0) == {1, 2, 3}
