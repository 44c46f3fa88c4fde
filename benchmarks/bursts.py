"""TCP bursts of heavy-tailed sizes from one host to all others: the program of a host.

    bursts.py RANK MBPS LOAD SEED

The program sends bursts at random times to random hosts, whose average rate is the
share LOAD of a link of MBPS 10^6 bit/s, and receives the bursts of the others. It
prints a line when it is ready.
"""

import random
import socket
import sys
import threading
import time

from hosts import RANKS, address

PORT = 7790

# Mean size of a burst, exponent of its Pareto distribution, and largest size.
# Chosen: 32 ms of a link of 250 Mbit/s. With an exponent of 1.5 the mean is finite and
# the variance is not, as with the sizes of flows in data centres. The largest takes a
# second.
MEAN_BYTES, EXPONENT = 1_000_000, 1.5
MAX_BYTES = 30_000_000

PIECE_BYTES = 1 << 18


def receive(connection: socket.socket) -> None:
    """Receives a burst, and discards it."""
    with connection:
        while connection.recv(PIECE_BYTES):
            pass


def serve(server: socket.socket) -> None:
    """Receives all bursts."""
    while True:
        connection, _ = server.accept()
        threading.Thread(target=receive, args=(connection,), daemon=True).start()


def send(to: int, size: int) -> None:
    """Sends one burst; the end of its receiver is no error."""
    piece = bytes(PIECE_BYTES)
    try:
        with socket.create_connection((address(to), PORT)) as connection:
            while size > 0:
                connection.sendall(piece[:size])
                size -= PIECE_BYTES
    except OSError:
        return


def main() -> None:
    """Runs until SIGTERM."""
    rank, mbps, load, seed = map(float, sys.argv[1:])
    server = socket.create_server((address(int(rank)), PORT))
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    print("ready", flush=True)
    generator = random.Random(RANKS * int(seed) + int(rank))  # noqa: S311
    per_s = load * mbps * 1e6 / 8 / MEAN_BYTES
    smallest = MEAN_BYTES * (EXPONENT - 1) / EXPONENT
    others = [other for other in range(RANKS) if other != rank]
    while True:
        time.sleep(generator.expovariate(per_s))
        size = min(smallest * generator.paretovariate(EXPONENT), MAX_BYTES)
        to = generator.choice(others)
        threading.Thread(target=send, args=(to, int(size)), daemon=True).start()


if __name__ == "__main__":
    main()
