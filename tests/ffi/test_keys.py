"""Keys of directions: no two of them encrypt with the same stream."""

import numpy as np
from endpoints import Net

from jax_optireduce import _testing

TAG_BYTES = _testing.OVERHEAD_BYTES - _testing.HEADER_BYTES


def test_what_two_ranks_encrypt_alike_differs_on_the_wire():
    net = Net(2, protection="encrypt")
    for rank in range(2):
        net.submit(rank, np.ones(10, np.float32))
    net.collect()
    encrypted = [{}, {}]
    for to, datagram in net.wire:
        kind, _, source, *_, number, _ = _testing.parse_header(datagram)
        assert source == 1 - to
        text = datagram[_testing.HEADER_BYTES : -TAG_BYTES]
        encrypted[source][kind, number] = text
    # Both say the same under the same numbers, first of all what they call.
    assert encrypted[0].keys() == encrypted[1].keys()
    for same in encrypted[0]:
        assert len(encrypted[0][same]) == len(encrypted[1][same]) > 0
        assert encrypted[0][same] != encrypted[1][same]
