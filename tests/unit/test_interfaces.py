"""The choice of an interface, in the syntax of NCCL_SOCKET_IFNAME."""

import hypothesis
import pytest
from hypothesis import strategies as st

from jax_optireduce._errors import UsageError
from jax_optireduce._session import interfaces

HOST = [
    ("lo", "127.0.0.1"),
    ("eth0", "10.0.0.5"),
    ("eth1", "192.168.7.5"),
    ("docker0", "172.17.0.1"),
    ("eth0", "fe80::1%eth0"),
    ("eth1", "fd00::5"),
]

names = st.text("eth01dockerlo", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("pattern", "on_route", "chosen"),
    [
        ("eth1", "10.0.0.5", "192.168.7.5"),
        ("eth", "192.168.7.5", "192.168.7.5"),
        ("eth", None, "10.0.0.5"),
        ("=eth0", "192.168.7.5", "10.0.0.5"),
        ("=eth", "10.0.0.5", None),
        ("ib,eth1", "10.0.0.5", "192.168.7.5"),
        ("^eth0,docker", "10.0.0.5", "192.168.7.5"),
        ("^=eth1", None, "10.0.0.5"),
        ("eth1", "fd00::9", "fd00::5"),
        ("lo", "10.0.0.5", "127.0.0.1"),
        ("wlan", "10.0.0.5", None),
    ],
)
def test_the_address_is_that_of_an_interface_of_the_pattern(pattern, on_route, chosen):
    if chosen is None:
        with pytest.raises(UsageError, match=r"it has lo \(127.0.0.1\), eth0"):
            interfaces.choose(pattern, HOST, on_route)
    else:
        assert interfaces.choose(pattern, HOST, on_route) == chosen


@hypothesis.given(st.lists(names, min_size=1, max_size=3), names, st.booleans())
def test_an_exclusion_is_the_complement(parts, name, whole):
    pattern = "=" * whole + ",".join(parts)
    assert interfaces.matches(pattern, name) != interfaces.matches("^" + pattern, name)


@hypothesis.given(st.lists(names, min_size=1, max_size=3), names)
def test_whole_names_are_beginnings(parts, name):
    pattern = ",".join(parts)
    if interfaces.matches("=" + pattern, name):
        assert interfaces.matches(pattern, name)
