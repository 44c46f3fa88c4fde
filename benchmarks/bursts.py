"""TCP bursts of heavy-tailed sizes from one host to all others: the program of a host.

    bursts.py RANK RANKS SEED MBPS LOAD MEAN_BYTES

The program sends bursts at random times to random hosts, and receives the bursts of the
others. Their average rate is the share LOAD of a link of MBPS 10^6 bit/s, their average
size MEAN_BYTES. It prints a line when it is ready.
"""

import random
import socket
import sys
import threading
import time

from hosts import address

PORT = 7790

# Exponent of the Pareto distribution of the sizes, and the largest size in mean sizes.
# Chosen: with an exponent of 1.5 the mean is finite and the variance is not, as with
# the sizes of flows in data centres.
EXPONENT, LARGEST = 1.5, 30

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
    rank, ranks, seed = map(int, sys.argv[1:4])
    mbps, load, mean_bytes = map(float, sys.argv[4:])
    server = socket.create_server((address(rank), PORT))
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    print("ready", flush=True)
    generator = random.Random(ranks * seed + rank)  # noqa: S311
    per_s = load * mbps * 1e6 / 8 / mean_bytes
    smallest = mean_bytes * (EXPONENT - 1) / EXPONENT
    others = [other for other in range(ranks) if other != rank]
    while True:
        time.sleep(generator.expovariate(per_s))
        size = min(smallest * generator.paretovariate(EXPONENT), LARGEST * mean_bytes)
        to = generator.choice(others)
        threading.Thread(target=send, args=(to, int(size)), daemon=True).start()


if __name__ == "__main__":
    main()
