"""Paths that lose datagrams, all or the long ones, between network namespaces."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import ranks

RANKS = 3
# Chosen: a network that no test machine uses.
NETWORK = "10.79.0"
# The number of the process that has made a namespace follows.
PREFIX = "optireduce-mtu"


def _run(command: str, *, check: bool = True) -> None:
    subprocess.run(command.split(), check=check, capture_output=True)


def _can_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"optireduce-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], check=False)
    subprocess.run(["ip", "netns", "delete", name], check=False)
    return made.returncode == 0


pytestmark = pytest.mark.skipif(
    not _can_make_namespaces(), reason="needs root and network namespaces"
)


def _all_namespaces() -> list[str]:
    listed = subprocess.run(
        ["ip", "netns", "list"], check=True, capture_output=True, text=True
    )
    return [line.split()[0] for line in listed.stdout.splitlines()]


def _remove_leftovers() -> None:
    """Removes the namespaces of processes that were killed."""
    for name in _all_namespaces():
        made = re.match(rf"{PREFIX}-(\d+)", name)
        if made and not Path(f"/proc/{made[1]}").exists():
            _run(f"ip netns delete {name}", check=False)


@pytest.fixture
def namespaces():
    """Names of namespaces, one for each rank, behind one bridge."""
    _remove_leftovers()
    switch = f"{PREFIX}-{os.getpid()}"
    names = [f"{switch}-{rank}" for rank in range(RANKS)]
    try:
        _run(f"ip netns add {switch}")
        _run(f"ip -n {switch} link add br0 type bridge")
        _run(f"ip -n {switch} link set br0 up")
        for rank, name in enumerate(names):
            _run(f"ip netns add {name}")
            end = f"type veth peer name p{rank} netns {switch}"
            _run(f"ip link add eth0 netns {name} {end}")
            _run(f"ip -n {switch} link set p{rank} master br0 up")
            _run(f"ip -n {name} address add {NETWORK}.{rank + 1}/24 dev eth0")
            _run(f"ip -n {name} link set eth0 up")
            _run(f"ip -n {name} link set lo up")
        yield names
    finally:
        for name in [*names, switch]:
            _run(f"ip netns delete {name}", check=False)


def test_only_namespaces_of_processes_that_are_over_are_removed():
    with subprocess.Popen(["true"]) as over:
        pass
    names = [f"{PREFIX}-{pid}-9" for pid in (over.pid, os.getpid())]
    for name in names:
        _run(f"ip netns add {name}")
    try:
        _remove_leftovers()
        assert set(names) & set(_all_namespaces()) == {names[1]}
    finally:
        for name in names:
            _run(f"ip netns delete {name}", check=False)


@pytest.mark.parametrize(
    "mode", ["exact", pytest.param("agreed", marks=pytest.mark.long)]
)
def test_a_smaller_mtu_is_an_error_that_names_the_sizes(tmp_path, namespaces, mode):
    with ranks.start(
        "small_mtu",
        mode,
        folder=tmp_path,
        world_size=RANKS,
        options={"peer_timeout_s": 4},
        namespaces=namespaces,
        address=f"{NETWORK}.1",
    ) as started:
        for rank in range(RANKS):
            started.wait_for(rank, "calling")
        _run(f"ip -n {namespaces[-1]} link set eth0 mtu 1280")
        for rank in range(RANKS):
            started.wait_for(rank, "error")
        for rank in started:
            (line,) = rank.lines("error")
            kind, behind, error = line.split(" ", 2)
            said = re.search(
                r"datagrams of (\d+) bytes to rank (\d) do not arrive, "
                r"those of (\d+) bytes do",
                error,
            )
            assert said, error
            assert int(said[1]) > 1252 >= int(said[3])
            assert (kind, behind) == ("PathTooSmall", said[2])


def _add_direct_path(sender: str, receiver: str) -> None:
    """Sends what goes to rank 0 past the switch, by a link of its own."""
    end = f"type veth peer name eth1 netns {receiver}"
    _run(f"ip link add eth1 netns {sender} {end}")
    _run(f"ip -n {receiver} link set eth1 up")
    _run(f"ip -n {sender} link set eth1 up gso_max_segs 1")
    _run(f"ip -n {sender} route add {NETWORK}.1/32 dev eth1")


def _narrow(sender: str, receiver: str) -> None:
    """Lets only short datagrams pass the link; TCP knows it."""
    _run(f"ip -n {sender} route change {NETWORK}.1/32 dev eth1 mtu lock 600")
    _run(f"ip -n {receiver} link set eth1 mtu 628")


@pytest.mark.long
def test_a_rank_whose_long_datagrams_do_not_reach_process_0_goes_and_the_job_goes_on(
    tmp_path, namespaces
):
    """One direction of one path loses them: all ranks hear each other all the time."""
    _add_direct_path(namespaces[2], namespaces[0])
    with ranks.start(
        *("survivors", "bounded", "0.04", "60"),
        folder=tmp_path,
        world_size=RANKS,
        options={"peer_timeout_s": 3, "deadline_s": 1.0},
        namespaces=namespaces,
        address=f"{NETWORK}.1",
    ) as started:
        started.wait_for(2, "step 20")
        _narrow(namespaces[2], namespaces[0])
        started.succeed(0, 1)
        lost = (
            r"datagrams of (\d+) bytes{} to rank 0 do not arrive, those of (\d+) bytes"
        )
        for rank in started[:2]:
            assert rank.lines("alone") == ["2"], started.describe()
            (removal,) = [line for line in rank.lines("log") if "removed" in line]
            assert removal.startswith("rank 2 removed from the session although heard")
            said = re.search(lost.format(" from rank 2"), removal)
            assert said, removal
            assert int(said[1]) > 600 >= int(said[2])
            assert "silence" not in removal
        started.wait(2)
        assert started[2].lines("typed") == ["PathTooSmall 2"], started.describe()


def _init(folder, namespaces, begin, **options):
    """Joins, and calls once; returns the ends of the lines that begin so."""
    with ranks.start(
        *("rendezvous", "plainly"),
        folder=folder,
        world_size=RANKS,
        options=options,
        namespaces=namespaces,
        address=f"{NETWORK}.1",
    ) as started:
        started.wait()
        said = ["".join(rank.lines(begin)) for rank in started]
        assert said[0], started.describe()
        return said


def _errors_of_init(folder, namespaces, **options):
    return _init(folder, namespaces, "error", **options)


def _set_mtus(namespaces, own, of_ports):
    """Sets the MTU of all ranks' interfaces, and those of the other ends."""
    switch = namespaces[0].rsplit("-", 1)[0]
    for rank, (name, of_port) in enumerate(zip(namespaces, of_ports, strict=True)):
        _run(f"ip -n {name} link set eth0 mtu {own}")
        _run(f"ip -n {switch} link set p{rank} mtu {of_port}")


_JUMBO = (9000, (9000, 9000, 8700), 8972, 8472)


@pytest.mark.parametrize(
    ("own", "of_ports", "longest", "datagrams"),
    [
        (1500, (1500, 1400, 1280), 1472, 1252),
        pytest.param(*_JUMBO, marks=pytest.mark.long),
    ],
)
def test_ranks_take_the_datagrams_that_pass_all_paths(
    tmp_path, namespaces, own, of_ports, longest, datagrams
):
    """The MTUs are those of a path: no interface of a rank has them."""
    _set_mtus(namespaces, own, of_ports)
    reason = f"({longest} do not pass from rank 0 to rank 2)"
    expected = f"datagrams of {datagrams} bytes {reason}"
    # The ports of the first session are free again for the second one.
    ports = {"lanes": 2, "port_range": "41000-41001"}
    (said, *_) = _init(tmp_path, namespaces, "jax_optireduce: ", **ports)
    assert expected in said, said
    for rank in range(RANKS):
        lines = (tmp_path / f"rank{rank}.txt").read_text().splitlines()
        assert f"datagrams {datagrams}" in lines


@pytest.mark.long
@pytest.mark.skipif(shutil.which("iptables") is None, reason="needs iptables")
def test_a_firewall_against_udp_is_an_error_of_init(tmp_path, namespaces):
    _run(f"ip netns exec {namespaces[2]} iptables -A INPUT -p udp -j DROP")
    errors = _errors_of_init(tmp_path, namespaces)
    for rank in (0, 1):
        place = f"rank 2 at {NETWORK}.3, UDP port"
        assert re.match(rf"rank {rank}: {place} \d+ answers no datagram", errors[rank])
    assert f"rank 2: no datagram ever came from rank 0 at {NETWORK}.1" in errors[2]
    assert "(and of 1 more)" in errors[2]
    assert all("Does UDP pass between these hosts" in error for error in errors)
