"""The number of lanes that a session chooses."""

import os

import pytest

from jax_optireduce import _host, _lanes

CORES_16 = _lanes.Share(list(range(16)), 0, 0, 0)
TWO_HOSTS = ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 4),
        ({"cores": list(range(7))}, 1),
        ({"cores": list(range(64))}, 8),
        ({"quota_cores": 8.5}, 2),
        ({"quota_cores": 0.5}, 1),
        ({"link_mbps": 1_000}, 1),
        ({"link_mbps": 10_000}, 4),
        ({"link_mbps": 3_001}, 2),
        ({"link_mbps": 200_000}, 4),
        ({"ports": 3}, 3),
        ({"ports": 1}, 1),
    ],
)
def test_the_least_host_decides(changes, expected):
    least = CORES_16._replace(**changes)
    most = CORES_16._replace(cores=list(range(128)))
    assert _lanes.choose(TWO_HOSTS, [least, most]) == expected
    assert _lanes.choose(TWO_HOSTS, [most, least]) == expected


def test_processes_of_a_host_share_its_cores_link_and_ports():
    addresses = [*TWO_HOSTS, TWO_HOSTS[0]]

    def chosen(**changes):
        shared = CORES_16._replace(**changes)
        return _lanes.choose(addresses, [shared, CORES_16, shared])

    assert chosen() == 2
    assert chosen(cores=list(range(64))) == 4
    assert chosen(cores=list(range(64)), link_mbps=10_000) == 2
    assert chosen(cores=list(range(64)), ports=6) == 3


def test_processes_with_cores_of_their_own_use_all_of_them():
    first, second = (list(range(8)), list(range(8, 16)))
    shares = [CORES_16._replace(cores=cores) for cores in (first, second)]
    assert _lanes.choose(["10.0.0.1"] * 2 + ["10.0.0.2"], [*shares, CORES_16]) == 2


@pytest.mark.parametrize("processes", [1, 4])
def test_one_host_has_one_lane(processes):
    assert _lanes.choose(["127.0.0.1"] * processes, [CORES_16] * processes) == 1


def test_a_process_knows_its_cores_and_ports():
    share = _lanes.own_share("no such interface", (41_000, 41_063))
    assert set(share.cores) == os.sched_getaffinity(0)
    assert (share.link_mbps, share.ports) == (0, 64)
    assert _lanes.own_share("", (0, 0)).ports == 0


@pytest.mark.parametrize(
    ("content", "expected"), [("25000\n", 25_000), ("-1\n", 0), ("", 0)]
)
def test_a_link_without_a_speed_is_unknown(monkeypatch, content, expected):
    monkeypatch.setattr(_host, "read", {"/sys/class/net/eth0/speed": content}.get)
    assert _host.link_mbps("eth0") == expected


@pytest.mark.parametrize(
    ("content", "expected"), [("400000 100000\n", 4.0), ("max 100000\n", 0), ("", 0)]
)
def test_a_quota_of_the_container_counts(monkeypatch, content, expected):
    monkeypatch.setattr(_host, "read", lambda _: content)
    assert _lanes.own_share("", (0, 0)).quota_cores == expected
