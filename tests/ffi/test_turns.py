"""In which order a rank sends what it has, and to how many at a time."""

import numpy as np
from endpoints import SECRET, Net

from jax_optireduce import _testing

CONTRIBUTION, RESULT, ACKNOWLEDGEMENT = 1, 2, 3
SESSION = 77


def test_sums_of_an_older_call_go_before_contributions_to_a_newer_one():
    net = Net(2)
    arrays = [np.ones(60_000, np.float32) for _ in range(3)]
    net.submit(0, arrays[0])
    net.run(0.5)
    # Rank 0 goes on before rank 1 has made the first call, and then gets some of it.
    net.submit(0, arrays[1], sequence=1, token=1)
    net.submit(1, arrays[2])
    while (transmit := net.ranks[1].poll_transmit(net.now, 8)) is not None:
        for datagram in transmit[1]:
            net.ranks[0].handle_datagram(net.now, datagram)
    sent = []
    while (transmit := net.ranks[0].poll_transmit(net.now, 1)) is not None:
        kind, *_ = _testing.parse_header(transmit[1][0])
        if kind in (CONTRIBUTION, RESULT):
            sent.append(kind)
    sums = sent.count(RESULT)
    assert sums > 2
    assert sent[1 : 1 + sums] == [RESULT] * sums
    assert sent[-1] == CONTRIBUTION


def acknowledgement(incast: int) -> bytes:
    """Of nothing, by a rank to which so many may send at a time."""
    return bytes(6 + 4) + bytes([incast, 0, 0])


def receivers_of_contributions(incasts: dict[int, int]) -> set[int]:
    """Whom rank 0 of four sends to at first; the others say their `incasts`."""
    rank = _testing.Endpoint(0, 4, SECRET)
    for peer, incast in incasts.items():
        label = f"jax_optireduce 2 session {SESSION} lane 0 from {peer} to 0"
        sealer = _testing.Sealer(_testing.derive_key(SECRET, label))
        header = _testing.encode_header(
            (ACKNOWLEDGEMENT, 0, peer, SESSION, 0, 0, 0, 0, 0)
        )
        content, tag = sealer.seal(0, header + acknowledgement(incast))
        rank.handle_datagram(1.0, content + tag)
    assert rank.counters()["datagrams_received"] == len(incasts)
    # More for each of them than a window holds.
    array = np.ones(400_000, np.float32)
    refused = rank.submit(1.0, "x", "x", 1, False, 0.1, [0, 1, 2, 3], 0, 0, array)
    assert refused == ""
    receivers = set()
    while (transmit := rank.poll_transmit(1.0, 8)) is not None:
        to, datagrams = transmit
        kinds = {_testing.parse_header(datagram)[0] for datagram in datagrams}
        if CONTRIBUTION in kinds:
            receivers.add(to)
    return receivers


def test_a_rank_sends_to_as_many_at_a_time_as_the_peer_that_takes_the_fewest():
    assert len(receivers_of_contributions({1: 3, 2: 3, 3: 3})) == 3
    assert len(receivers_of_contributions({1: 3, 2: 2, 3: 3})) == 2
    assert len(receivers_of_contributions({1: 3, 2: 3, 3: 1})) == 1
    assert len(receivers_of_contributions({1: 1, 2: 3, 3: 3})) == 1
