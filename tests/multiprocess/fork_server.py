"""Starts the ranks of tests as forks of a process that has imported JAX.

The import takes more processor time than most programs of the tests. A fork that has
no thread and no backend of JAX yet is otherwise like a process of its own: the program
is its `__main__`, and the interpreter ends in the usual way.

    fork_server.py SOCKET      # a descriptor

A request is a JSON object (`command`: program and arguments, `environment`) with two
descriptors: the output, and a pipe that gets the exit code. The answer is the number of
the process.
"""

import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

# Imports of the programs.
IMPORTED = ("flax.linen", "flax.nnx", "optax", "jax_optireduce")

# Chosen: many times the environment of a test.
REQUEST_BYTES_MAX = 1 << 17


def _serve(channel: socket.socket) -> dict:
    """Answers requests; returns, in the process of a rank only, the request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, *_ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 2)
        if not request:
            os._exit(0)
        output, ended = descriptors
        if os.fork() > 0:
            os.close(output)
            os.close(ended)
            continue
        # A process between server and rank, which waits for the end of the rank.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        rank = os.fork()
        if rank == 0:
            break
        os.close(output)
        channel.send(str(rank).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
        os.write(ended, str(code).encode())
        os._exit(0)
    os.setsid()
    os.close(ended)
    channel.close()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    return json.loads(request)


def _take_place(request: dict) -> tuple[str, str]:
    """Returns the program, in the state of a process that was started with it."""
    program = Path(request["command"][0])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["command"]
    sys.path[0] = str(program.parent)
    # A whole line at once: the thread that logs writes to the same file, by stderr.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)
    return program.read_text(), str(program)


if __name__ == "__main__":
    for _name in IMPORTED:
        importlib.import_module(_name)
    _source, __file__ = _take_place(_serve(socket.socket(fileno=int(sys.argv[1]))))
    exec(compile(_source, __file__, "exec"))  # noqa: S102
