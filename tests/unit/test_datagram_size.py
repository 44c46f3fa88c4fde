"""The longest datagram of a session, apart from the MTU."""

import pytest

from jax_optireduce import _rendezvous

ONE_HOST = ["127.0.0.1"] * 4


@pytest.mark.parametrize(
    ("addresses", "receive_buffer_bytes", "expected"),
    [
        (ONE_HOST, 8 << 20, 65_504),
        # Sixteen for each of three peers.
        (ONE_HOST, 1 << 20, 21_840),
        # The usual limit of Linux.
        (ONE_HOST, 212_992, 8972),
        (["10.0.0.1", "10.0.0.1", "10.0.0.2"], 8 << 20, 8972),
        (["127.0.0.1"], 8 << 20, 65_504),
    ],
)
def test_datagrams_are_longer_where_all_processes_are_on_one_host(
    addresses, receive_buffer_bytes, expected
):
    got = _rendezvous._default_datagram_bytes(addresses, receive_buffer_bytes)
    assert got == expected
