"""Hosts on this machine, with links of a given rate, for benchmarks of networks.

The hosts are network namespaces behind one switch, all in the kernel: each host has a
card that sends at the rate of its link and exerts backpressure, each port of the switch
a queue that drops the excess; the switch also drops at random. Needs root, and the
programs of `PROGRAMS`.

A host with stalls runs this file as a program:

    hosts.py <stalls per s> <median length, ms>

During a stall no packet reaches the host: a rule of iptables puts packets into queue 0
of the kernel (NFQUEUE), which announces each of them by a message over netlink and
keeps it until the answer. At the end of the stall the program releases the packets, and
removes the rule, so that the packets between stalls do not pass through the program. It
prints "ready" before the first stall, and at its end the number of stalls and of held
packets, on standard error.
"""

import contextlib
import dataclasses
import math
import os
import random
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

RANKS = 4  # hosts, unless a benchmark has another number

NETWORK = "10.77.0"
COORDINATOR_PORT = 7778

# Several programs may have hosts at once; in different containers with the same
# process ID.
NAME = f"optireduce-{os.getpid()}-{secrets.token_hex(4)}"
SWITCH = f"{NAME}-switch"

# Folder of the files with which `ip netns exec` replaces files of /etc.
# Source: ip-netns(8).
ETC = Path("/etc/netns")

# Longest run of losses, in ms. Chosen: TCP after a timeout, with a packet each 200 ms,
# would lose packets for seconds; at 1 Gbit/s the time is that of 400 packets.
SPELL_MS = 5

# Time for the end of a program after SIGTERM, in seconds. Chosen: a rank with JAX's own
# collectives ignores SIGTERM, as the notice of a preemption.
STOP_S = 2

# Required programs, and those that are missing.
PROGRAMS = ("ip", "tc", "ethtool", "nft", "iptables")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]

# Source of all numbers: linux/netlink.h, linux/netfilter/nfnetlink.h,
# linux/netfilter/nfnetlink_queue.h and asm-generic/socket.h.
SO_RCVBUFFORCE = 33
NETLINK_NETFILTER = 12
NLM_F_REQUEST = 1
ERROR = 2
SUBSYSTEM_QUEUE = 3 << 8
QUEUED, CONFIG, VERDICTS_UP_TO = (SUBSYSTEM_QUEUE | n for n in (0, 2, 3))
COMMAND, PARAMETERS, MAXIMUM, MASK, FLAGS = 1, 2, 3, 4, 5  # attributes of CONFIG
BIND = struct.pack(">BBH", 1, 0, socket.AF_INET)
NO_CONTENTS = struct.pack(">IB", 0, 1)
# A packet that the kernel has yet to segment counts as one.
WHOLE = struct.pack(">I", 4)
VERDICT, ACCEPT = 2, 1

# Offset of the number of the packet in a message about it.
ID_OFFSET = 24

# Largest number of waiting packets. Chosen: above the packets of 1 Gbit/s in a second.
QUEUE_LENGTH = struct.pack(">I", 100_000)
# Buffer of unread messages, in bytes. Chosen: as many messages.
BUFFER_BYTES = 64 << 20

# Priority above the ranks, below kernel threads. Chosen: theirs begin at 50.
STALL_PRIORITY = 10

# P99 of the lengths of stalls, in units of their median. Chosen: as in `Stalls`.
STALL_P99 = 3.0
# Source: the standard normal distribution.
NORMAL_P99 = 2.326

# Time between two releases while the rule is removed, in seconds. Chosen: a removal
# takes 3 ms.
RELEASE_S = 0.0005


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stalls:
    """Random times at which no packet reaches a host; packets stay in order.

    Attributes:
      per_s: average rate of stalls.
      median_ms: median length of a stall, in ms; the P99 is three times that.
    """

    per_s: float
    median_ms: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """The link of each host to the switch.

    Attributes:
      mbps: rate in 10^6 bit/s; 0: without a limit, nor a queue.
      queue_ms: size of the queue in front of the link, in ms at this rate.
      congestion: TCP's congestion control.
      loss: share of the packets from each host that the switch drops at random.
      run: average number of consecutive drops (Gilbert's model).
      slow: factor by which the link of the last host is slower.
      stalls: of each host; None: without the program.
      mtu: of the cards and ports, in bytes.
    """

    mbps: int
    queue_ms: int
    congestion: str
    loss: float = 0.0
    run: int = 1
    slow: float = 1.0
    stalls: Stalls | None = None
    mtu: int = 1500


def host(rank: int) -> str:
    """Returns the name of a host's namespace."""
    return f"{NAME}-{rank}"


def address(rank: int) -> str:
    """Returns the address of a host."""
    return f"{NETWORK}.{rank + 1}"


def environment(rank: int, ranks: int = RANKS) -> dict[str, str]:
    """Returns the variables of a rank's process."""
    return {
        "JAX_COORDINATOR_ADDRESS": f"{address(0)}:{COORDINATOR_PORT}",
        "JAX_NUM_PROCESSES": str(ranks),
        "JAX_PROCESS_ID": str(rank),
        "JAX_PLATFORMS": "cpu",
    }


@contextlib.contextmanager
def network(link: Link, ranks: int = RANKS) -> Iterator[None]:
    """Makes the hosts, the switch and the links; removes them, also on SIGTERM."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _run(f"ip netns add {SWITCH}")
        _run(f"ip -n {SWITCH} link add br0 type bridge")
        _run(f"ip -n {SWITCH} link set br0 up")
        with contextlib.ExitStack() as stack:
            for rank in range(ranks):
                _add_host(rank, link, is_last=rank == ranks - 1)
                if link.stalls:
                    stack.enter_context(_stalling(rank, link.stalls))
            yield
    finally:
        for rank in range(ranks):
            _run(f"ip netns delete {host(rank)}", check=False)
            shutil.rmtree(ETC / host(rank), ignore_errors=True)
        _run(f"ip netns delete {SWITCH}", check=False)
        signal.signal(signal.SIGTERM, before)


def _add_host(rank: int, link: Link, *, is_last: bool) -> None:
    """Makes a host, its link, and its port of the switch."""
    name, port = host(rank), f"p{rank}"
    # Gloo listens on the address of the machine's own name.
    (ETC / name).mkdir(parents=True, exist_ok=True)
    (ETC / name / "hosts").write_text(
        f"127.0.0.1 localhost\n{address(rank)} {socket.gethostname()}\n"
    )
    _run(f"ip netns add {name}")
    end = f"type veth peer name {port} netns {SWITCH} mtu {link.mtu}"
    _run(f"ip link add eth0 netns {name} mtu {link.mtu} {end}")
    _run(f"ip -n {SWITCH} link set {port} master br0 up")
    _run(f"ip -n {name} address add {address(rank)}/24 dev eth0")
    _run(f"ip -n {name} link set eth0 up")
    _run(f"ip -n {name} link set lo up")
    if link.loss:
        # Loss applies to packets of the MTU. Without loss the kernel does not segment
        # them, which takes a core at 1 Gbit/s, and which real cards do.
        cut = "tso off tx-udp-segmentation off gso on gro on"
        _run(f"ip netns exec {name} ethtool -K eth0 {cut}")
        _run(f"ip netns exec {SWITCH} nft -f -", text=_loss(port, link))
    route = f"{NETWORK}.0/24 dev eth0 congctl {link.congestion}"
    _run(f"ip -n {name} route replace {route}")
    if link.mbps:
        _limit(name, port, link.mbps / (link.slow if is_last else 1), link.queue_ms)


def _limit(name: str, port: str, mbps: float, queue_ms: int) -> None:
    """Limits the rate of a link."""
    bytes_per_ms = round(mbps * 1_000_000 / 8 / 1000)
    # Twice the lateness of a timer of the kernel.
    shape = f"root tbf rate {mbps * 1e6:.0f}bit burst {max(bytes_per_ms, 3000)}"
    queue = max(bytes_per_ms * queue_ms, 3000)
    # The card of a sender exerts backpressure; the switch drops.
    _run(f"tc -n {name} qdisc add dev eth0 {shape} limit 2000000")
    _run(f"tc -n {SWITCH} qdisc add dev {port} {shape} limit {queue}")


def _loss(port: str, link: Link) -> str:
    """Returns the rules of nft by which the switch drops packets at a port."""
    # ARP is exempt: its loss would block a host for a second.
    # A run of drops ends before a packet with probability 1 / run. The share of the
    # packets in runs is the loss if a run begins with this probability:
    begin = link.loss / (link.run * (1 - link.loss) + link.loss)
    million = 1_000_000
    chance = f"numgen random mod {million} < {round(million * begin)}"
    spells = [
        f"iif @bad numgen random mod {link.run} == 0 delete @bad {{ iif }}",
        f"{chance} add @bad {{ iif timeout {SPELL_MS}ms }}",
        "iif @bad drop",
    ]
    rules = spells if link.run > 1 else [f"{chance} drop"]
    return f"""table netdev {port} {{
        set bad {{ type iface_index; flags dynamic, timeout; size 1024; }}
        chain ingress {{
            type filter hook ingress device {port} priority 0;
            meta protocol != ip accept;
            {"; ".join(rules)}
        }}
    }}"""


@contextlib.contextmanager
def _stalling(rank: int, stalls: Stalls) -> Iterator[None]:
    """Stalls a host."""
    values = [str(value) for value in dataclasses.astuple(stalls)]
    with program(rank, __file__, *values) as process:
        if not process.stdout.readline():
            raise RuntimeError(f"{__file__} has failed.")
        yield


def _run(command: str, *, text: str = "", check: bool = True) -> None:
    """Runs a command with a text as input; an error shows its output."""
    done = subprocess.run(  # noqa: S603 (the words are ours)
        command.split(), input=text, capture_output=True, text=True, check=False
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.strip() or done.returncode}")


@contextlib.contextmanager
def program(
    rank: int, *arguments: str, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """Runs Python on a host, and ends it.

    Args:
      rank: index of the host.
      *arguments: arguments of the interpreter.
      variables: additional variables of the environment.

    Yields:
      The process; its standard output is a pipe.
    """
    # -P: the installed package, not the folder of that name in a checkout.
    command = ["ip", "netns", "exec", host(rank), sys.executable, "-P", *arguments]
    process = subprocess.Popen(  # noqa: S603 (the words are ours)
        command,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class Queue:
    """Queue 0 of this network namespace."""

    def __init__(self) -> None:
        """Binds the queue.

        Raises:
          OSError: another program has the queue, or this one lacks the permission.
        """
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER
        )
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._socket.bind((0, 0))
        self._socket.setblocking(False)
        self._send(CONFIG, {COMMAND: BIND})
        self._send(
            CONFIG,
            {
                PARAMETERS: NO_CONTENTS,
                MAXIMUM: QUEUE_LENGTH,
                MASK: WHOLE,
                FLAGS: WHOLE,
            },
        )
        # Errors are reported immediately.
        list(self._numbers())

    def release(self) -> int:
        """Releases the packets in the queue, in order; returns their number.

        Raises:
          OSError: the kernel refused the message.
        """
        numbers = list(self._numbers())
        if numbers:
            up_to_last = struct.pack(">II", ACCEPT, numbers[-1])
            self._send(VERDICTS_UP_TO, {VERDICT: up_to_last})
        return len(numbers)

    def _numbers(self) -> Iterator[int]:
        """Returns the numbers of new packets, in order."""
        while select.select([self._socket], [], [], 0)[0]:
            message = self._socket.recv(4096)
            kind = struct.unpack_from("=H", message, 4)[0]
            if kind == ERROR:
                error = -struct.unpack_from("=i", message, 16)[0]
                raise OSError(error, os.strerror(error))
            if kind == QUEUED:
                yield struct.unpack_from(">I", message, ID_OFFSET)[0]

    def _send(self, kind: int, attributes: dict[int, bytes]) -> None:
        body = struct.pack(">BBH", 0, 0, 0)
        for name, value in attributes.items():
            body += struct.pack("=HH", 4 + len(value), name)
            body += value + bytes(-len(value) % 4)
        head = struct.pack("=IHHII", 16 + len(body), kind, NLM_F_REQUEST, 0, 0)
        self._socket.send(head + body)


def main() -> None:
    """Stalls the host until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    per_s, median_ms = map(float, sys.argv[1:])
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(STALL_PRIORITY))
    queue = Queue()
    stalls = held = 0
    print("ready", flush=True)
    try:
        while True:
            time.sleep(random.expovariate(per_s))
            length = math.exp(random.gauss(0, math.log(STALL_P99) / NORMAL_P99))
            held += stall(queue, median_ms / 1000 * length)
            stalls += 1
    finally:
        print(f"hosts.py: {stalls} stalls, {held} packets held", file=sys.stderr)


def stall(queue: Queue, length_s: float) -> int:
    """Holds all packets to the host for a time; returns their number."""
    with change_rule("-A") as addition:
        addition.wait()
    time.sleep(length_s)
    number = queue.release()
    with change_rule("-D") as removal:
        while removal.poll() is None:
            queue.release()
            time.sleep(RELEASE_S)
    queue.release()
    return number


def change_rule(change: str) -> subprocess.Popen:
    """Starts to add ("-A") or remove ("-D") the rule that fills the queue."""
    rule = "INPUT -i eth0 -j NFQUEUE --queue-num 0"
    return subprocess.Popen(["iptables", change, *rule.split()])  # noqa: S603, S607


if __name__ == "__main__":
    main()
