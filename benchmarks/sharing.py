"""A link shared with TCP: the shares of their solo speeds that both keep.

    sudo python benchmarks/sharing.py

The program makes 4 hosts on this machine (see `hosts.py`; needs root), each with a link
of the given rate and a queue in front of it that drops the excess. One rank on each
host makes consecutive calls of mode "exact"; a TCP flow goes from the host of rank 0 to
that of rank 1, over the same links. The program measures each alone, then both: once
with the flow joining the calls, once with the calls joining the flow. It prints the
rate of each in 10^6 bit/s, and its share of the solo rate.

No packet leaves the machine, and the hosts are removed at the end. Exit code: 0.
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hosts import MISSING, RANKS, Link, address, environment, network, program

PROGRAM = str(Path(__file__).with_name("sharing_peer.py"))

# The flow goes between these hosts.
SENDER, RECEIVER = 0, 1
PORT = 7777  # of the flow

# Time until both rates are steady, in seconds.
# Chosen: many round trips; TCP fills a queue of 10 ms within tens of them.
SETTLE_S = 3.0
# Longest duration of a start, in seconds.
START_S = 120.0


@contextlib.contextmanager
def flow(notes: Path) -> Iterator[None]:
    """Runs the TCP flow."""
    end = address(RECEIVER), str(PORT)
    with program(RECEIVER, PROGRAM, "receive", *end, str(notes)) as receiver:
        receiver.stdout.readline()
        with program(SENDER, PROGRAM, "send", *end):
            yield


@contextlib.contextmanager
def calls(notes: Path, mebibytes: int) -> Iterator[None]:
    """Runs the ranks, which make calls until the end."""
    stop = notes.with_suffix(".stop")
    stop.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                program(
                    rank,
                    *(PROGRAM, "call", str(mebibytes), str(stop), str(notes)),
                    variables=environment(rank),
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
    """Returns the noted rate between two times, in 10^6 bit/s."""
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    inside = [(at, amount) for at, amount in lines if begin <= at <= end]
    first, last = inside[0], inside[-1]
    # The first note only marks the start.
    return 8e-6 * sum(amount for _, amount in inside[1:]) / (last[0] - first[0])


def measure(seconds: float) -> tuple[float, float]:
    """Waits for a steady state; returns the begin and end of the measurement."""
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
    add(
        "--seconds",
        type=float,
        default=15,
        help="length of a phase (default 15)",
    )
    add("--mebibytes", type=int, default=4, help="of a call (default 4)")
    args = parser.parse_args()
    if MISSING or os.geteuid() != 0:
        parser.error(f"needs root, and {' and '.join(MISSING) or 'nothing else'}")
    print(
        "| 10^6 bit/s | queue, ms | TCP | order | allreduce alone | TCP alone "
        "| allreduce, both | TCP, both | allreduce keeps | TCP keeps |\n"
        f"|{' ---: |' * 2} --- | --- |{' ---: |' * 6}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for mbps in args.mbps:
            for queue_ms in args.queue_ms:
                for congestion in args.congestion:
                    link = Link(mbps=mbps, queue_ms=queue_ms, congestion=congestion)
                    lines = cell(link, args.seconds, args.mebibytes, Path(folder))
                    print("\n".join(lines), flush=True)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
