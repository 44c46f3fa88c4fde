"""Delays the packets that reach this host: `hosts.py` runs it on hosts with a delay.

    python benchmarks/delay.py <least, ms> <stalls per s> <length of a stall, ms>

The kernel announces each packet in its queue 0 (NFQUEUE of iptables) by a message over
netlink, which has the number of the packet without its content. The packet stays in the
kernel until the answer to the message. The kernel merges consecutive packets of one
flow before, those of UDP to a socket with UDP_GRO as those of TCP: they count as one.
The program prints "ready" when it has the queue, and at its end its work, on standard
error. See `hosts.Delay`.
"""

import collections
import dataclasses
import math
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator

# Source of all numbers: linux/netlink.h, linux/netfilter/nfnetlink.h,
# linux/netfilter/nfnetlink_queue.h and asm-generic/socket.h.
SO_RCVBUFFORCE = 33
NETLINK_NETFILTER = 12
NLM_F_REQUEST = 1
ERROR = 2
SUBSYSTEM_QUEUE = 3 << 8
QUEUED, CONFIG, VERDICTS_UP_TO = (SUBSYSTEM_QUEUE | n for n in (0, 2, 3))
COMMAND, PARAMETERS, MAXIMUM, MASK, FLAGS = 1, 2, 3, 4, 5  # of CONFIG
BIND = struct.pack(">BBH", 1, 0, socket.AF_INET)
NO_CONTENTS = struct.pack(">IB", 0, 1)
# A merged packet counts as one.
WHOLE = struct.pack(">I", 4)
VERDICT, ACCEPT = 2, 1

# Offset of the number of the packet in a message about it.
ID_OFFSET = 24

# Largest number of waiting packets. Chosen: above the packets of 1 Gbit/s in a second.
LENGTH = struct.pack(">I", 100_000)
# Buffer of unread messages, in bytes. Chosen: as many messages.
BUFFER_BYTES = 64 << 20

# Priority above the ranks, below kernel threads. Chosen: theirs begin at 50.
PRIORITY = 10

# P99 of the lengths of stalls, in units of their median. Chosen: as in `hosts.Delay`.
P99 = 3.0
# Source: the standard normal distribution.
NORMAL_P99 = 2.326


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
                MAXIMUM: LENGTH,
                MASK: WHOLE,
                FLAGS: WHOLE,
            },
        )
        self.announced = 0
        # Errors are reported immediately.
        list(self.numbers(0))

    def numbers(self, timeout_s: float | None) -> Iterator[int]:
        """Waits for packets at most `timeout_s`, and returns their numbers, in order.

        Raises:
          OSError: the kernel refused the message.
        """
        select.select([self._socket], [], [], timeout_s)
        while True:
            try:
                message = self._socket.recv(4096)
            except BlockingIOError:
                return
            kind = struct.unpack_from("=H", message, 4)[0]
            if kind == ERROR:
                error = -struct.unpack_from("=i", message, 16)[0]
                raise OSError(error, os.strerror(error))
            if kind == QUEUED:
                self.announced += 1
                yield struct.unpack_from(">I", message, ID_OFFSET)[0]

    def let_pass(self, last: int) -> None:
        """Releases all packets up to this one."""
        self._send(VERDICTS_UP_TO, {VERDICT: struct.pack(">II", ACCEPT, last)})

    def _send(self, kind: int, attributes: dict[int, bytes]) -> None:
        body = struct.pack(">BBH", 0, 0, 0)
        for name, value in attributes.items():
            body += struct.pack("=HH", 4 + len(value), name)
            body += value + bytes(-len(value) % 4)
        head = struct.pack("=IHHII", 16 + len(body), kind, NLM_F_REQUEST, 0, 0)
        self._socket.send(head + body)


@dataclasses.dataclass
class Stalls:
    """Random times at which no packet reaches this host."""

    per_s: float
    median_s: float
    start_s: float = 0.0
    end_s: float = 0.0

    def over(self, at_s: float) -> float:
        """Returns the time at which the stalls let a packet pass."""
        while self.per_s and at_s >= self.end_s:
            self.start_s = (self.end_s or at_s) + random.expovariate(self.per_s)
            length = math.exp(random.gauss(0, math.log(P99) / NORMAL_P99))
            self.end_s = self.start_s + self.median_s * length
        return max(at_s, self.end_s) if at_s >= self.start_s else at_s


def main() -> None:
    """Delays packets until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    least_ms, per_s, stall_ms = map(float, sys.argv[1:])
    stalls = Stalls(per_s, stall_ms / 1000)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    queue = Queue()
    print("ready", flush=True)
    try:
        hold(queue, stalls, least_ms / 1000)
    finally:
        print(
            f"delay.py: {queue.announced} packets, {time.process_time():.2f} s of "
            "processor time",
            file=sys.stderr,
        )


def hold(queue: Queue, stalls: Stalls, least_s: float) -> None:
    """Delays packets, without an end."""
    held: collections.deque[tuple[float, int]] = collections.deque()
    while True:
        timeout_s = max(held[0][0] - time.monotonic(), 0) if held else None
        for number in queue.numbers(timeout_s):
            now_s = time.monotonic()
            held.append((stalls.over(now_s + least_s), number))
        last = None
        now_s = time.monotonic()
        while held and held[0][0] <= now_s:
            last = held.popleft()[1]
        if last is not None:
            queue.let_pass(last)


if __name__ == "__main__":
    main()
