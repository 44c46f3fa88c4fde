"""Keys of directions: no two directions encrypt with the same key stream."""

import numpy as np
from session import Session

import optireduce_testing as native

TAG_BYTES = native.OVERHEAD_BYTES - native.HEADER_BYTES


def test_what_two_ranks_encrypt_alike_differs_on_the_wire():
    session = Session(2, protection="encrypt")
    for rank in range(2):
        session.submit(rank, np.ones(10, np.float32))
    session.collect()
    encrypted = [{}, {}]
    for to, datagram in session.wire:
        header = native.parse_header(datagram)
        assert header.source == 1 - to
        text = datagram[native.HEADER_BYTES : -TAG_BYTES]
        encrypted[header.source][header.kind, header.number] = text
    # Both send the same under the same numbers, beginning with the announcement.
    assert encrypted[0].keys() == encrypted[1].keys()
    for same in encrypted[0]:
        assert len(encrypted[0][same]) == len(encrypted[1][same]) > 0
        assert encrypted[0][same] != encrypted[1][same]
