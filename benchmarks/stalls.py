"""Stalls this host at random times: `hosts.py` runs it on hosts with stalls.

    python benchmarks/stalls.py <stalls per s> <median length, ms>

During a stall no packet reaches the host: a rule of iptables puts packets into queue 0
of the kernel (NFQUEUE), which announces each of them by a message over netlink and
keeps it until the answer. At the end of the stall the program releases the packets, and
removes the rule, so packets between stalls pass the host as without the program.

The program prints "ready" before the first stall, and at its end the number of stalls
and of held packets, on standard error. See `hosts.Stalls`.
"""

import math
import os
import random
import select
import signal
import socket
import struct
import subprocess
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
# A packet that the kernel has yet to segment counts as one.
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

# P99 of the lengths of stalls, in units of their median. Chosen: as in `hosts.Stalls`.
P99 = 3.0
# Source: the standard normal distribution.
NORMAL_P99 = 2.326

# Time between two releases while the rule is removed, in seconds. Chosen: a removal
# takes 3 ms.
RELEASE_S = 0.0005


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
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    queue = Queue()
    stalls = held = 0
    print("ready", flush=True)
    try:
        while True:
            time.sleep(random.expovariate(per_s))
            length = math.exp(random.gauss(0, math.log(P99) / NORMAL_P99))
            held += stall(queue, median_ms / 1000 * length)
            stalls += 1
    finally:
        print(f"stalls.py: {stalls} stalls, {held} packets held", file=sys.stderr)


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
