"""`python -m jax_optireduce coordinator`: any process of a job may die.

    python -m jax_optireduce coordinator --ranks 4 --port 1234
    export JAX_OPTIREDUCE_COORDINATOR=10.0.0.1:1234       for each process

By default process 0 hosts JAX's coordination service, whose end ends all other
processes. This program hosts it instead. It waits without a limit until all
processes have come, and then serves them until SIGTERM or Ctrl-C: end it after
the processes, since its end ends those that run. It needs no device and hardly
any processor time. A new job needs a new coordinator.

With `--replicas` it keeps the entries of replicas, which JAX does not connect:
any number of them may come and go.

Each process gets the address as the option `coordinator`. `launch` starts a
coordinator itself. At the next port, here 1235, the processes report to it, and
`status --coordinator 10.0.0.1:1234` shows them.

Exit codes: 0, after SIGTERM; 1, it cannot listen; 2, usage error; 130 after
Ctrl-C.
"""

import argparse
import logging
import os
import signal
import socket
import threading

from jax_optireduce._errors import RendezvousError, UsageError
from jax_optireduce._jax import service
from jax_optireduce._session import roll_call, store
from jax_optireduce._session.options import Internal
from jax_optireduce.tools import arguments, job_reports
from jax_optireduce.tools.launch import EXIT_BY_SIGNAL

_log = logging.getLogger("jax_optireduce")


# Addresses at which other hosts do not reach this one begin so. Source: RFC 6890.
_LOOPBACK = ("127.", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this verb to `parser`."""
    processes = parser.add_mutually_exclusive_group()
    processes.add_argument(
        "--ranks",
        **arguments.whole(2),
        help="number of processes of the job",
    )
    processes.add_argument(
        "--replicas",
        action="store_true",
        help="the processes are replicas, of any number",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        default="",
        help="file with the secret that the replicas share (default: none)",
    )
    parser.add_argument(
        "--port",
        **arguments.port(),
        required=True,
        help="TCP port at which it listens; and P + 1, for the reports",
    )
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        default="::",
        help="address of this host at which it listens (default: all)",
    )


def run(args: argparse.Namespace) -> int:
    """Serves a job until a signal.

    Raises:
      RendezvousError: it cannot listen at the address.
      UsageError: the options do not fit together.
    """
    if args.ranks is None and not args.replicas:
        raise UsageError("give --ranks N, or --replicas for any number of processes.")
    if args.token_file and not args.replicas:
        raise UsageError("--token-file is for --replicas; JAX's service has no token.")
    logging.basicConfig(format="%(message)s")
    _log.setLevel(logging.INFO)
    _end_by_signals()
    host = f"[{args.bind}]" if ":" in args.bind else args.bind
    address = f"{host}:{args.port}"
    reports = roll_call.listen(f"{host}:{args.port + 1}")
    job_reports.serve(reports, args.ranks)
    if args.ranks is None:
        listener = roll_call.listen(address)
        token = store.read_token(args.token_file)
        _log.info("coordinator of replicas at port %d", args.port)
        if not token and not args.bind.startswith(_LOOPBACK):
            _log.warning(
                "without --token-file any host that reaches this port can join the "
                "replicas"
            )
        store.serve(listener, token)
        return 0
    roll_call.host(address, args.ranks)
    heartbeat_timeout_s = Internal.read(os.environ).heartbeat_timeout_s
    try:
        served = service.start(address, args.ranks, heartbeat_timeout_s)
    except RuntimeError as error:
        raise RendezvousError(
            f"the coordinator cannot listen at {address}: {error}"
        ) from error
    _log.info("all %d processes have come", args.ranks)
    threading.Event().wait()
    del served  # It ends with the process.
    return 0


def _end_by_signals() -> None:
    """Lets SIGTERM and Ctrl-C end this process, whatever its main thread waits for.

    Python runs handlers in the main thread alone, which would miss a signal that comes
    just before its wait. The number of a signal is written to a socket at once.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def end() -> None:
        (number,) = reader.recv(1)
        os._exit(0 if number == signal.SIGTERM else EXIT_BY_SIGNAL + number)

    threading.Thread(target=end, daemon=True).start()
