"""Hosts on this machine, joined by links of a given rate, for benchmarks of networks.

Network namespaces behind one switch, all in the kernel: each host has a card that sends
at the rate of its link and pushes back, each port of the switch a queue that drops what
does not fit; the switch also drops by chance. Only where packets are to be late does a
program of ours, `delay.py`, hold them in front of each host: the kernel's own means,
netem, is a module that many kernels come without. Needs root, and what `MISSING` looks
for.
"""

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

RANKS = 4

DELAY = str(Path(__file__).with_name("delay.py"))

NETWORK = "10.77.0"
SWITCH = "optireduce-switch"
COORDINATOR_PORT = 7778

# Folder of the files that `ip netns exec` puts in place of those of /etc.
# Source: ip-netns(8).
ETC = Path("/etc/netns")

# A bad spell ends after this many ms at the latest. Chosen: TCP that sends a packet per
# 200 ms, after a timeout, would be in one for seconds; at 1 Gbit/s it is 400 packets.
SPELL_MS = 5

# Time for a program to stop by itself. Chosen: a rank amid its calls never does,
# since JAX takes SIGTERM for the notice of a machine that is about to go.
STOP_S = 2

# Missing programs.
PROGRAMS = ("ip", "tc", "ethtool", "nft", "iptables")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delay:
    """When packets reach a host, after they have left the link; they stay in order.

    Attributes:
      least_ms: least wait of each, in ms.
      stalls_per_s: how often, on average, a host stalls: nothing reaches it meanwhile.
      stall_ms: how long, the median in ms; the P99 is three times that.
    """

    least_ms: float
    stalls_per_s: float = 0.0
    stall_ms: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """The link of each host to the switch.

    Attributes:
      mbps: its rate in 10^6 bit/s.
      queue_ms: size of the queue before it, in ms at this rate.
      congestion: TCP's congestion control.
      loss: share of the packets from each host that the switch drops by chance.
      run: how many of them are dropped in a row, on average (Gilbert's model).
      slow: by how much the link of the last host is slower.
      delay: of packets to a host; None: they do not pass through our program.
    """

    mbps: int
    queue_ms: int
    congestion: str
    loss: float = 0.0
    run: int = 1
    slow: float = 1.0
    delay: Delay | None = None


def host(rank: int) -> str:
    """Returns the name of a host's namespace."""
    return f"optireduce-{rank}"


def address(rank: int) -> str:
    """Returns the address of a host."""
    return f"{NETWORK}.{rank + 1}"


def environment(rank: int) -> dict[str, str]:
    """Returns the variables of a rank's process."""
    return {
        "JAX_COORDINATOR_ADDRESS": f"{address(0)}:{COORDINATOR_PORT}",
        "JAX_NUM_PROCESSES": str(RANKS),
        "JAX_PROCESS_ID": str(rank),
        "JAX_PLATFORMS": "cpu",
    }


@contextlib.contextmanager
def network(link: Link) -> Iterator[None]:
    """Makes the hosts, the switch and the links, and removes them, even at SIGTERM."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _run(f"ip netns add {SWITCH}")
        _run(f"ip -n {SWITCH} link add br0 type bridge")
        _run(f"ip -n {SWITCH} link set br0 up")
        with contextlib.ExitStack() as stack:
            for rank in range(RANKS):
                _add_host(rank, link)
                if link.delay:
                    stack.enter_context(_delayed(rank, link.delay))
            yield
    finally:
        for rank in range(RANKS):
            _run(f"ip netns delete {host(rank)}", check=False)
            shutil.rmtree(ETC / host(rank), ignore_errors=True)
        _run(f"ip netns delete {SWITCH}", check=False)
        signal.signal(signal.SIGTERM, before)


def _add_host(rank: int, link: Link) -> None:
    """Makes a host, its link, and its port of the switch."""
    name, port = host(rank), f"p{rank}"
    # Gloo listens where the machine's own name leads.
    (ETC / name).mkdir(parents=True, exist_ok=True)
    (ETC / name / "hosts").write_text(
        f"127.0.0.1 localhost\n{address(rank)} {socket.gethostname()}\n"
    )
    _run(f"ip netns add {name}")
    end = f"type veth peer name {port} netns {SWITCH}"
    _run(f"ip link add eth0 netns {name} {end}")
    _run(f"ip -n {SWITCH} link set {port} master br0 up")
    _run(f"ip -n {name} address add {address(rank)}/24 dev eth0")
    _run(f"ip -n {name} link set eth0 up")
    _run(f"ip -n {name} link set lo up")
    if link.loss:
        # Loss applies to packets of the MTU. Without loss the kernel need not segment
        # them here: a card does that, and the kernel takes a core for it at 1 Gbit/s.
        cut = "tso off tx-udp-segmentation off gso on gro on"
        _run(f"ip netns exec {name} ethtool -K eth0 {cut}")
        _run(f"ip netns exec {SWITCH} nft -f -", text=_loss(port, link))
    mbps = link.mbps / (link.slow if rank == RANKS - 1 else 1)
    bytes_per_ms = round(mbps * 1_000_000 / 8 / 1000)
    # Twice the time that a timer of the kernel may be late.
    shape = f"root tbf rate {mbps * 1e6:.0f}bit burst {max(bytes_per_ms, 3000)}"
    queue = max(bytes_per_ms * link.queue_ms, 3000)
    # A sender's own card pushes back; the switch drops.
    _run(f"tc -n {name} qdisc add dev eth0 {shape} limit 2000000")
    _run(f"tc -n {SWITCH} qdisc add dev {port} {shape} limit {queue}")
    route = f"{NETWORK}.0/24 dev eth0 congctl {link.congestion}"
    _run(f"ip -n {name} route replace {route}")


def _loss(port: str, link: Link) -> str:
    """Returns the rules of nft by which the switch drops packets at a port."""
    # ARP never is: a host that it does not find gets nothing at all for a second.
    # A bad spell, in which all is dropped, ends before a packet with chance 1 / run.
    # The share of the packets in one is the loss, if one begins with this chance:
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
def _delayed(rank: int, delay: Delay) -> Iterator[None]:
    """Holds the packets to a host."""
    # Merged first, packets of one flow cost the program one step, not one each.
    _run(f"ip netns exec {host(rank)} ethtool -K eth0 gro on")
    values = [str(value) for value in dataclasses.astuple(delay)]
    with program(rank, DELAY, *values) as process:
        if not process.stdout.readline():
            raise RuntimeError(f"{DELAY} has failed.")
        queue = "iptables -A INPUT -i eth0 -j NFQUEUE --queue-num 0"
        _run(f"ip netns exec {host(rank)} {queue}")
        yield


def _run(command: str, *, text: str = "", check: bool = True) -> None:
    """Runs a command that reads a text; an error shows what it printed."""
    done = subprocess.run(  # noqa: S603 (the words are ours)
        command.split(), input=text, capture_output=True, text=True, check=False
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.strip() or done.returncode}")


@contextlib.contextmanager
def program(
    rank: int, *arguments: str, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """Runs Python on a host, and stops it.

    Args:
      rank: of the host.
      *arguments: of the interpreter.
      variables: of the environment, beside those of this process.

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
