"""The number of peers that a rank contributes to at a time, as they advertise."""

import numpy as np
import pytest
from session import SECRET, sealer_of

import optireduce_testing as native

CONTRIBUTION, ACKNOWLEDGEMENT = 1, 3
SESSION = 77
RANKS = 5


def tell_incast(endpoint, source: int, incast: int) -> None:
    """Lets a peer acknowledge nothing, and advertise an incast."""
    header = native.encode_header(
        native.Header(kind=ACKNOWLEDGEMENT, source=source, session=SESSION)
    )
    payload = bytes(6 + 4) + bytes([incast, 0, 0])
    content, tag = sealer_of(source, SESSION).seal(0, header + payload)
    endpoint.handle_datagram(0.0, content + tag)


def contributed_to(endpoint) -> set[int]:
    """The peers to which contributions leave, while no data is acknowledged."""
    receivers = set()
    while (transmit := endpoint.poll_transmit(0.0, 8)) is not None:
        to, datagrams = transmit
        kinds = {native.parse_header(datagram).kind for datagram in datagrams}
        if CONTRIBUTION in kinds:
            receivers.add(to)
    return receivers


@pytest.mark.parametrize("incast", [1, 2, 3, 4])
def test_a_rank_contributes_to_as_many_peers_at_a_time_as_the_least_of_them_takes(
    incast,
):
    endpoint = native.Endpoint(0, RANKS, SECRET, datagram_bytes_max=8972)
    for source in range(1, RANKS):
        tell_incast(endpoint, source, RANKS if source > 1 else incast)
    # More than a window for each peer.
    bucket = np.ones(1_000_000, np.float32)
    collective = native.Collective(
        "x", members=list(range(RANKS)), elements=bucket.size, mode="lossy"
    )
    assert endpoint.submit(0.0, collective, bucket) == ""
    assert len(contributed_to(endpoint)) == incast
