"""The number of lanes that a session chooses."""

import os

import pytest

from jax_optireduce._session import host_facts, lanes

CORES_16 = lanes.Share("one", "10.0.0.1", list(range(16)), 0, 0, 0)
OTHER = CORES_16._replace(host="other", address="10.0.0.2", cores=list(range(128)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 8),
        ({"cores": list(range(7))}, 3),
        ({"cores": list(range(3))}, 1),
        ({"cores": list(range(64))}, 8),
        ({"quota_cores": 8.5}, 4),
        ({"quota_cores": 0.5}, 1),
        ({"link_mbps": 1_000}, 1),
        ({"link_mbps": 10_000}, 4),
        ({"link_mbps": 3_001}, 2),
        ({"link_mbps": 200_000}, 8),
        ({"ports": 3}, 3),
        ({"ports": 1}, 1),
    ],
)
def test_the_least_host_decides(changes, expected):
    least = CORES_16._replace(**changes)
    assert lanes.choose([least, OTHER]) == expected
    assert lanes.choose([OTHER, least]) == expected


def test_processes_of_a_host_share_its_cores_link_and_ports():
    def chosen(**changes):
        shared = CORES_16._replace(**changes)
        return lanes.choose([shared, OTHER, shared])

    assert chosen() == 4
    assert chosen(cores=list(range(64))) == 8
    assert chosen(cores=list(range(64)), link_mbps=10_000) == 2
    assert chosen(cores=list(range(64)), ports=6) == 3


def test_processes_with_addresses_of_their_own_share_the_cores_of_their_host():
    def chosen(**changes):
        first = CORES_16._replace(**changes)
        return lanes.choose([first, OTHER, first._replace(address="10.0.1.1")])

    assert chosen() == 4
    # Each has a link and ports.
    assert chosen(cores=list(range(64)), link_mbps=10_000) == 4
    assert chosen(cores=list(range(64)), ports=6) == 6


def test_processes_with_cores_of_their_own_use_all_of_them():
    parts = (list(range(8)), list(range(8, 16)))
    shares = [CORES_16._replace(cores=cores) for cores in parts]
    assert lanes.choose([*shares, OTHER]) == 4


@pytest.mark.parametrize(("processes", "expected"), [(1, 1), (2, 4), (4, 2), (16, 1)])
def test_processes_of_one_host_share_its_cores(processes, expected):
    shares = [CORES_16._replace(address=f"127.0.0.{i}") for i in range(processes)]
    assert lanes.choose(shares) == expected


def test_processes_of_unknown_hosts_are_told_apart_by_address(monkeypatch):
    monkeypatch.setattr(host_facts, "read", lambda _: "")
    assert lanes.own_share("10.0.0.1", "", (0, 0)).host == "10.0.0.1"


def test_a_process_knows_its_cores_and_ports():
    share = lanes.own_share("10.0.0.1", "no such interface", (41_000, 41_063))
    assert share.host
    assert share.host == lanes.own_share("10.0.0.2", "", (0, 0)).host
    assert set(share.cores) == os.sched_getaffinity(0)
    assert (share.link_mbps, share.ports) == (0, 64)
    assert lanes.own_share("10.0.0.1", "", (0, 0)).ports == 0


@pytest.mark.parametrize(
    ("content", "expected"), [("25000\n", 25_000), ("-1\n", 0), ("", 0)]
)
def test_a_link_without_a_speed_is_unknown(monkeypatch, content, expected):
    monkeypatch.setattr(host_facts, "read", {"/sys/class/net/eth0/speed": content}.get)
    assert host_facts.link_mbps("eth0") == expected


_VERSION_1 = "/sys/fs/cgroup/cpu/cpu.cfs_"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4.0),
        ({"/sys/fs/cgroup/cpu.max": "max 100000\n"}, 0),
        ({_VERSION_1 + "quota_us": "150000\n", _VERSION_1 + "period_us": "50000\n"}, 3),
        ({_VERSION_1 + "quota_us": "-1\n", _VERSION_1 + "period_us": "100000\n"}, 0),
        ({}, 0),
    ],
)
def test_a_quota_of_the_container_counts(monkeypatch, files, expected):
    monkeypatch.setattr(host_facts, "read", lambda path: files.get(path, ""))
    assert lanes.own_share("10.0.0.1", "", (0, 0)).quota_cores == expected
