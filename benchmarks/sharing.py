"""A link shared with TCP: what an allreduce and a TCP flow keep of their own speeds.

    sudo python benchmarks/sharing.py

Makes 4 hosts on this machine (network namespaces behind one switch; needs root, `ip`
and `tc`), each with a link of the given rate and a queue in front of it that drops what
does not fit. One rank runs on each host and makes calls of mode "exact" one after the
other; a TCP flow goes from the host of rank 0 to that of rank 1, over the same links.
Measures each alone, then both: once with the flow joining the calls, once the other way
round. Prints what each gets in 10^6 bit/s, and which share of what it had alone.

Nothing leaves the machine, and everything is removed at the end. Exit code: 0.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(__file__).with_name("sharing_peer.py")

RANKS = 4
# The flow goes between these hosts.
SENDER, RECEIVER = 0, 1
NETWORK = "10.77.0"
SWITCH = "optireduce-switch"
PORT = 7777  # of the flow
COORDINATOR_PORT = 7778

# Until both have settled, in seconds.
# Chosen: many round trips; TCP fills a queue of 10 ms within tens of them.
SETTLE_S = 3.0
# Longest that a start may take, in seconds.
START_S = 120.0


@dataclasses.dataclass(frozen=True)
class Link:
    """What joins each host to the switch.

    Attributes:
      mbps: its rate in 10^6 bit/s.
      queue_ms: what the queue before it holds, in ms at this rate.
      congestion: TCP's congestion control.
    """

    mbps: int
    queue_ms: int
    congestion: str


def host(rank: int) -> str:
    """Returns the name of a host's namespace."""
    return f"optireduce-{rank}"


def address(rank: int) -> str:
    """Returns the address of a host."""
    return f"{NETWORK}.{rank + 1}"


def run(command: str) -> None:
    """Runs a command; an error shows what it printed."""
    done = subprocess.run(  # noqa: S603 (the words are ours)
        command.split(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.strip() or done.returncode}")


@contextlib.contextmanager
def network(link: Link) -> Iterator[None]:
    """Makes the hosts, the switch and the links, and removes them."""
    names = [SWITCH, *(host(rank) for rank in range(RANKS))]
    # Twice the time that a timer of the kernel may be late.
    burst = max(link.mbps * 1_000_000 // 8 // 1000, 3000)
    queue = max(link.mbps * 1_000_000 // 8 * link.queue_ms // 1000, 3000)
    shape = f"root tbf rate {link.mbps}mbit burst {burst}"
    try:
        for name in names:
            run(f"ip netns add {name}")
        run(f"ip -n {SWITCH} link add br0 type bridge")
        run(f"ip -n {SWITCH} link set br0 up")
        for rank in range(RANKS):
            end = f"netns {SWITCH}"
            run(
                f"ip link add eth0 netns {host(rank)} type veth peer name p{rank} {end}"
            )
            run(f"ip -n {SWITCH} link set p{rank} master br0 up")
            run(f"ip -n {host(rank)} address add {address(rank)}/24 dev eth0")
            run(f"ip -n {host(rank)} link set eth0 up")
            run(f"ip -n {host(rank)} link set lo up")
            # A sender's own card pushes back; the switch drops.
            run(f"tc -n {host(rank)} qdisc add dev eth0 {shape} limit 2000000")
            run(f"tc -n {SWITCH} qdisc add dev p{rank} {shape} limit {queue}")
            route = f"{NETWORK}.0/24 dev eth0 congctl {link.congestion}"
            run(f"ip -n {host(rank)} route replace {route}")
        yield
    finally:
        for name in names:
            subprocess.run(  # noqa: S603 (the words are ours)
                ["ip", "netns", "delete", name],  # noqa: S607 (found in the PATH)
                capture_output=True,
                check=False,
            )


@contextlib.contextmanager
def program(
    rank: int, *arguments: str, **environment: str
) -> Iterator[subprocess.Popen]:
    """Runs a part of the other file on a host, and stops it."""
    command = ["ip", "netns", "exec", host(rank), sys.executable, str(PROGRAM)]
    process = subprocess.Popen(  # noqa: S603 (the words are ours)
        [*command, *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def flow(notes: Path) -> Iterator[None]:
    """Runs the TCP flow."""
    with program(
        RECEIVER, "receive", address(RECEIVER), str(PORT), str(notes)
    ) as receiver:
        receiver.stdout.readline()
        with program(SENDER, "send", address(RECEIVER), str(PORT)):
            yield


@contextlib.contextmanager
def calls(notes: Path, mebibytes: int) -> Iterator[None]:
    """Runs the ranks, which make calls until the end."""
    environment = {
        "JAX_COORDINATOR_ADDRESS": f"{address(0)}:{COORDINATOR_PORT}",
        "JAX_NUM_PROCESSES": str(RANKS),
        "JAX_PLATFORMS": "cpu",
    }
    stop = notes.with_suffix(".stop")
    stop.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                program(
                    rank,
                    *("call", str(mebibytes), str(stop), str(notes)),
                    **environment,
                    JAX_PROCESS_ID=str(rank),
                )
            )
            for rank in range(RANKS)
        ]
        ranks[0].stdout.readline()
        yield
        stop.touch()
        for rank in ranks:
            rank.wait(START_S)


def rate_of(notes: Path, begin: float, end: float) -> float:
    """Returns what was noted between two times, in 10^6 bit/s."""
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    inside = [(at, amount) for at, amount in lines if begin <= at <= end]
    first, last = inside[0], inside[-1]
    # The first mark only says where to count from.
    return 8e-6 * sum(amount for _, amount in inside[1:]) / (last[0] - first[0])


def measure(seconds: float) -> tuple[float, float]:
    """Lets things settle, and returns the begin and the end of what counts."""
    time.sleep(SETTLE_S)
    begin = time.monotonic()
    time.sleep(seconds)
    return begin, time.monotonic()


def cell(link: Link, seconds: float, mebibytes: int, folder: Path) -> list[str]:
    """Measures one link; returns lines of the table."""
    tcp, ours = folder / "tcp", folder / "ours"
    for notes in (tcp, ours):
        notes.unlink(missing_ok=True)
    with network(link):
        with flow(tcp):
            tcp_alone = measure(seconds)
        with calls(ours, mebibytes):
            ours_alone = measure(seconds)
            with flow(tcp):
                tcp_joins = measure(seconds)
        with flow(tcp):
            time.sleep(SETTLE_S)
            with calls(ours, mebibytes):
                ours_joins = measure(seconds)
    alone = rate_of(ours, *ours_alone), rate_of(tcp, *tcp_alone)
    lines = []
    for title, window in (("TCP joins", tcp_joins), ("TCP first", ours_joins)):
        both = rate_of(ours, *window), rate_of(tcp, *window)
        cells = [f"{link.mbps}", f"{link.queue_ms}", link.congestion, title]
        cells += [f"{rate:.0f}" for rate in (*alone, *both)]
        cells += [f"{100 * b / a:.0f} %" for a, b in zip(alone, both, strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mbps", nargs="+", type=int, default=[100, 500], help="default 100 500")
    add("--queue-ms", nargs="+", type=int, default=[2, 10], help="default 2 10")
    add("--congestion", nargs="+", default=["cubic", "bbr"], help="default cubic bbr")
    add("--seconds", type=float, default=15, help="that count, of each (default 15)")
    add("--mebibytes", type=int, default=4, help="of a call (default 4)")
    args = parser.parse_args()
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        parser.error(f"needs root, and {' and '.join(missing) or 'nothing else'}")
    print(
        "| 10^6 bit/s | queue, ms | TCP | who was first | allreduce alone | TCP alone "
        "| allreduce, both | TCP, both | allreduce keeps | TCP keeps |\n"
        f"|{' ---: |' * 2} --- | --- |{' ---: |' * 6}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for mbps in args.mbps:
            for queue_ms in args.queue_ms:
                for congestion in args.congestion:
                    link = Link(mbps, queue_ms, congestion)
                    lines = cell(link, args.seconds, args.mebibytes, Path(folder))
                    print("\n".join(lines), flush=True)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
