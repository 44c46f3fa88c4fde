"""The program of a host of `sharing.py`: one rank, or one end of the TCP flow.

    sharing_peer.py call MEBIBYTES STOP NOTES     one rank; calls until STOP exists
    sharing_peer.py receive ADDRESS PORT NOTES    receiver of the flow
    sharing_peer.py send ADDRESS PORT             sender of the flow

The program prints a line when it is ready. It appends a line [time in s, bytes since
the previous line] to NOTES after each call, or every tenth of a second.
"""

import json
import socket
import sys
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_optireduce

# Bytes of one read or write of the flow.
PIECE_BYTES = 1 << 18
NOTE_S = 0.1


def note(notes: Path, amount: float) -> None:
    """Adds a line."""
    with notes.open("a") as file:
        file.write(json.dumps([time.monotonic(), amount]) + "\n")


def receive(address: str, port: str, notes: Path) -> None:
    """Receives data, and counts it."""
    server = socket.create_server((address, int(port)))
    print("ready", flush=True)
    connection, _ = server.accept()
    amount, noted = 0, time.monotonic()
    while piece := connection.recv(PIECE_BYTES):
        amount += len(piece)
        if time.monotonic() - noted >= NOTE_S:
            note(notes, amount)
            amount, noted = 0, time.monotonic()


def send(address: str, port: str) -> None:
    """Sends at the rate of TCP until SIGTERM."""
    connection = socket.create_connection((address, int(port)))
    piece = bytes(PIECE_BYTES)
    while True:
        connection.sendall(piece)


def call(mebibytes: int, stop: Path, notes: Path) -> None:
    """Makes calls; rank 0 contributes whether the call is the last one."""
    with jax_optireduce.init() as communicator:
        world_size = communicator.world_size
        mesh = jax.make_mesh((world_size,), ("ranks",), axis_types=(AxisType.Auto,))
        spec = PartitionSpec("ranks")
        allreduce = jax.jit(
            jax.shard_map(
                lambda x: jax_optireduce.psum(x, "ranks", name="sharing"),
                mesh=mesh,
                in_specs=spec,
                out_specs=spec,
            )
        )
        row = np.zeros((1, mebibytes << 18), np.float32)
        # Data to a host in a call: contributions to its shard, and the other shards.
        amount = 2 * (world_size - 1) / world_size * row.nbytes
        sharding = NamedSharding(mesh, spec)
        ready = False
        while True:
            row[0, 0] = communicator.rank == 0 and stop.exists()
            x = jax.make_array_from_process_local_data(sharding, row)
            total = np.asarray(allreduce(x).addressable_data(0))[0, 0]
            if communicator.rank == 1:
                note(notes, amount)
            if communicator.rank == 0 and not ready:
                print("ready", flush=True)
                ready = True
            if total > 0:
                return


def main() -> None:
    """Runs the command line."""
    role, *arguments = sys.argv[1:]
    if role == "receive":
        receive(arguments[0], arguments[1], Path(arguments[2]))
    elif role == "send":
        send(*arguments)
    else:
        call(int(arguments[0]), Path(arguments[1]), Path(arguments[2]))


if __name__ == "__main__":
    main()
