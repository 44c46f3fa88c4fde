"""Ports on real sockets, over the loopback interface."""

import itertools
import os
import pathlib
import socket
import struct
import subprocess
import sys
import threading
import time

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

# Longer than any wait of a busy machine that is not stuck.
PATIENCE_S = 20.0


def has_address(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def address_param(address: str) -> object:
    skip = pytest.mark.skipif(not has_address(address), reason=f"no {address} here")
    return pytest.param(address, marks=skip)


ADDRESSES = [address_param("127.0.0.1"), address_param("::1")]


def connected(
    datagram_bytes: int, address: str = "127.0.0.1", **options: object
) -> tuple[native.UdpPort, native.UdpPort]:
    """Two ports, each of which has the other as its rank 1, and itself as rank 0."""
    ports = [native.UdpPort(address, **options) for _ in range(2)]
    for mine, other in (ports, reversed(ports)):
        peers = [(address, port.local_port) for port in (mine, other)]
        mine.set_peers(peers, datagram_bytes)
    return ports[0], ports[1]


def receive(port: native.UdpPort, count: int) -> list[bytes]:
    """Waits for `count` datagrams, and takes any others that have arrived by then."""
    datagrams = []
    end = time.monotonic() + PATIENCE_S
    while len(datagrams) < count and time.monotonic() < end:
        taken = port.receive()
        datagrams += taken
        if not taken:
            port.wait(0.1)
    return datagrams + port.receive()


def numbered(count: int, size: int, last: int | None = None) -> list[bytes]:
    """Datagrams with distinct contents; the last one may be shorter."""
    sizes = [size] * (count - 1) + [size if last is None else last]
    whole = [i.to_bytes(4, "big") * (n // 4 + 1) for i, n in enumerate(sizes)]
    return [datagram[:n] for datagram, n in zip(whole, sizes, strict=True)]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("receive_offload", [False, True])
@pytest.mark.parametrize("segmentation_offload", [False, True])
@pytest.mark.parametrize("size", [40, 1472, 8972, 40_000])
def test_batches_arrive_whole_and_in_order(
    address, segmentation_offload, receive_offload, size
):
    one, two = connected(
        size,
        address,
        segmentation_offload=segmentation_offload,
        receive_offload=receive_offload,
    )
    sent = []
    for _ in range(5):
        batch = numbered(one.batch_max, size, last=size // 2)
        assert one.send(1, [b"".join(batch)], size)
        sent += batch
    assert receive(two, len(sent)) == sent
    assert sum(one.errors().values()) == 0


@hypothesis.given(
    size=st.integers(1, 9000),
    fill=st.floats(0, 1),
    last=st.floats(0, 1),
    cuts=st.lists(st.floats(0, 1), max_size=128),
    segmentation_offload=st.booleans(),
)
def test_any_batch_arrives_as_it_was_sent_in_whatever_pieces(
    size, fill, last, cuts, segmentation_offload
):
    one, two = connected(size, segmentation_offload=segmentation_offload)
    count = 1 + int(fill * (one.batch_max - 1))
    batch = numbered(count, size, last=1 + int(last * (size - 1)))
    whole = b"".join(batch)
    # At most two pieces for each datagram, plus one; some of them are empty.
    at = [0, *sorted(int(cut * len(whole)) for cut in cuts[: 2 * count]), len(whole)]
    pieces = [whole[i:j] for i, j in itertools.pairwise(at)]
    assert one.send(1, pieces, size)
    assert receive(two, count) == batch


@pytest.mark.parametrize(
    ("size", "batch_max"), [(40, 64), (1023, 64), (1472, 44), (8972, 7), (65_507, 1)]
)
def test_a_batch_keeps_to_64_datagrams_and_one_ip_length(size, batch_max):
    one, _ = connected(size)
    if not one.segmentation_offload:
        pytest.skip("this kernel has no UDP_SEGMENT")
    assert one.batch_max == batch_max


def test_without_segmentation_offload_a_batch_is_one_datagram():
    one, _ = connected(1472, segmentation_offload=False)
    assert one.batch_max == 1
    assert not one.segmentation_offload


def test_without_segmentation_offload_a_larger_batch_is_sent_all_the_same():
    one, two = connected(100, segmentation_offload=False)
    batch = numbered(64, 100, last=7)
    assert one.send(1, [b"".join(batch)], 100)
    assert receive(two, 64) == batch


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_dead_peer_disturbs_nobody(address):
    one, two = connected(100, address)
    with socket.socket(
        socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM
    ) as gone:
        gone.bind((address, 0))
        dead = gone.getsockname()[1]
    peers = [(address, dead), (address, two.local_port)]
    one.set_peers(peers, 100)
    sent = []
    for datagram in numbered(300, 100):
        assert one.send(0, [b"refused"], 100)
        assert one.send(1, [datagram], 100)
        # The refusal may fail a reception as well.
        assert one.receive() == []
        sent.append(datagram)
    assert receive(two, len(sent)) == sent
    assert one.errors()["refused"] >= 300 * 0.9
    assert one.wait(0.05) < PATIENCE_S


def test_refusals_do_not_keep_a_wait_from_waiting():
    one, _ = connected(100)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        one.set_peers([gone.getsockname()], 100)
    assert one.send(0, [b"refused"], 100)
    one.wait(0.1)  # May end at once, because of the refusal.
    assert one.wait(0.1) >= 0.1
    assert one.errors()["refused"] == 1


@hypothesis.given(st.lists(st.binary(max_size=3000), min_size=1, max_size=20))
def test_foreign_datagrams_come_through_as_bytes(datagrams):
    port = native.UdpPort()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for datagram in datagrams:
            stranger.sendto(datagram, ("127.0.0.1", port.local_port))
    assert receive(port, len(datagrams)) == datagrams


def test_the_largest_datagram_comes_through():
    one, two = connected(65_507)
    datagram = bytes(range(251)) * 260 + bytes(247)
    assert len(datagram) == 65_507
    assert one.send(1, [datagram], 65_507)
    assert receive(two, 1) == [datagram]


def test_a_wait_ends_at_its_time_and_not_before():
    port = native.UdpPort()
    for timeout_s in (0.0, 0.0005, 0.02, 0.1):
        assert timeout_s <= port.wait(timeout_s) < timeout_s + PATIENCE_S


def test_a_datagram_ends_a_wait():
    one, two = connected(100)
    later = threading.Timer(0.05, lambda: one.send(1, [b"hello"], 100))
    later.start()
    assert two.wait(-1) < PATIENCE_S
    assert two.receive() == [b"hello"]
    later.join()


def test_wake_ends_a_wait_under_way():
    port = native.UdpPort()
    later = threading.Timer(0.05, port.wake)
    later.start()
    assert port.wait(-1) < PATIENCE_S
    later.join()
    assert port.wait(0.05) >= 0.05


def test_wake_ends_the_next_wait_once():
    port = native.UdpPort()
    for _ in range(3):
        port.wake()
    assert port.wait(-1) < PATIENCE_S
    assert port.wait(0.05) >= 0.05


def test_datagrams_for_which_there_was_no_room_are_counted():
    one, two = connected(1000, receive_buffer_bytes=4096, receive_offload=False)
    for datagram in numbered(200, 1000):
        assert one.send(1, [datagram], 1000)
    arrived = len(receive(two, 1))
    assert 0 < arrived < 200
    # The kernel reports the drops with the next datagram that has room.
    assert one.send(1, [b"room"], 1000)
    assert receive(two, 1) == [b"room"]
    assert two.socket_drops == 200 - arrived


def test_the_receive_buffer_is_reported_as_granted():
    small = native.UdpPort(receive_buffer_bytes=64 * 1024)
    assert small.granted_receive_buffer_bytes == 64 * 1024


def test_probe_reports_what_ports_get():
    buffers = {"receive_buffer_bytes": 96 * 1024, "send_buffer_bytes": 64 * 1024}
    found = native.probe_udp(**buffers)
    port = native.UdpPort(**buffers)
    assert found["gso"] == port.segmentation_offload
    assert found["gro"] == port.receive_offload
    assert {name: found[name] for name in buffers} == buffers
    assert found["loopback_mtu_bytes"] == native.path_mtu_bytes("127.0.0.1")


def test_path_mtu_of_loopback_is_that_of_its_interface():
    mtu = int(pathlib.Path("/sys/class/net/lo/mtu").read_text())
    # The header's length field allows no more.
    assert native.path_mtu_bytes("127.0.0.1") in {mtu, min(mtu, 65_535)}


# Prints the MTU that the kernel has for a path after a forged ICMP message, and ours.
_FORGED = """
import socket, struct
import optireduce_testing as native

own, peer = socket.inet_aton("10.78.0.1"), socket.inet_aton("10.78.0.2")
victim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
victim.bind(("10.78.0.1", 0))
victim.connect(("10.78.0.2", 9))
quoted = struct.pack("!BBHHHBBH4s4s", 69, 0, 1500, 1, 0x4000, 64, 17, 0, own, peer)
quoted += struct.pack("!HHHH", victim.getsockname()[1], 9, 1480, 0)
message = struct.pack("!BBHHH", 3, 4, 0, 0, 600) + quoted
words = struct.unpack(f"!{len(message) // 2}H", message)
total = sum(words)
total = (total & 0xFFFF) + (total >> 16)
checksum = 0xFFFF - ((total & 0xFFFF) + (total >> 16))
forger = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
forger.sendto(message[:2] + struct.pack("!H", checksum) + message[4:], ("10.78.0.1", 0))
IP_MTU = 14  # Source: linux/in.h.
print(victim.getsockopt(socket.IPPROTO_IP, IP_MTU), native.path_mtu_bytes("10.78.0.2"))
"""


def test_a_forged_icmp_message_does_not_make_datagrams_shorter():
    name = f"optireduce-icmp-{os.getpid()}"

    def run(command: str) -> None:
        subprocess.run(command.split(), check=True, capture_output=True)

    try:
        run(f"ip netns add {name}")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs root and network namespaces")
    try:
        run(f"ip -n {name} link set lo up")
        run(f"ip -n {name} link add eth0 type veth peer name eth1")
        run(f"ip -n {name} address add 10.78.0.1/24 dev eth0")
        run(f"ip -n {name} link set eth0 up")
        run(f"ip -n {name} link set eth1 up")
        forged = subprocess.run(
            ["ip", "netns", "exec", name, sys.executable, "-c", _FORGED],
            check=True,
            capture_output=True,
            text=True,
        )
    finally:
        run(f"ip netns delete {name}")
    of_kernel, ours = map(int, forged.stdout.split())
    assert of_kernel == 600
    assert ours == 1500


@pytest.mark.parametrize("address", ["", "localhost", "10.0.0", "10.0.0.1:80", "[::1]"])
def test_what_is_no_numeric_address_is_refused(address):
    with pytest.raises(ValueError, match="expected a numeric IPv4 or IPv6 address"):
        native.UdpPort(address)
    with pytest.raises(ValueError, match="rank 0: expected a numeric"):
        native.UdpPort().set_peers([(address, 9)], 1472)


def test_an_address_of_another_host_cannot_be_bound():
    with pytest.raises(RuntimeError, match=r"192\.0\.2\.1.*an address of this host"):
        native.UdpPort("192.0.2.1")


def test_a_port_in_use_cannot_be_bound():
    first = native.UdpPort()
    with pytest.raises(RuntimeError, match="a port that is free"):
        native.UdpPort(port=first.local_port)


def test_peers_must_be_reachable_from_the_socket():
    port = native.UdpPort()
    with pytest.raises(ValueError, match=r"rank 1: the address ::1 .* IPv4"):
        port.set_peers([("127.0.0.1", 9), ("::1", 9)], 1472)
    with pytest.raises(ValueError, match=r"rank 0: a peer's port .* got 0"):
        port.set_peers([("127.0.0.1", 0)], 1472)


@pytest.mark.parametrize("datagram_bytes_max", [0, 65_508])
def test_datagrams_must_fit_into_udp(datagram_bytes_max):
    with pytest.raises(ValueError, match=r"must be in \[1, 65507\]"):
        native.UdpPort().set_peers([("127.0.0.1", 9)], datagram_bytes_max)


@pytest.mark.skipif(os.geteuid() != 0, reason="a raw socket needs root")
def test_a_forged_icmp_that_asks_for_short_datagrams_is_not_believed():
    # The kernel keeps the MTU for ten minutes, so no other test may use this address.
    address = "127.0.0.77"
    one, two = connected(1472, address)
    sent = numbered(4, 1472)
    assert one.send(1, [b"".join(sent)], 1472)
    assert receive(two, 4) == sent
    # "Fragmentation needed", next MTU 600, of a datagram from `one` to `two`.
    udp = struct.pack(">HHHH", one.local_port, two.local_port, 1480, 0)
    loopback = socket.inet_aton(address)
    inner = struct.pack(">BBHHHBBH", 0x45, 0, 1500, 1, 0x4000, 64, 17, 0)
    inner += 2 * loopback + udp
    icmp = struct.pack(">BBHHH", 3, 4, 0, 0, 600) + inner
    total = sum(struct.unpack(f">{len(icmp) // 2}H", icmp))
    total = (total & 0xFFFF) + (total >> 16)
    icmp = icmp[:2] + struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF) + icmp[4:]
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.sendto(icmp, (address, 0))
    one.wait(0.1)
    for _ in range(3):
        assert one.send(1, [b"".join(sent)], 1472)
        assert receive(two, 4) == sent
