"""The status socket of this process, and the folders in which such sockets are.

The native side answers each connection to the socket with one JSON object, on a thread
of its own: `python -m jax_optireduce status` shows it.
"""

import contextlib
import json
import logging
import os
import re
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

_log = logging.getLogger("jax_optireduce")

# The name that ffi/runtime/communicator.cc gives: session, rank, process.
NAME = re.compile(r"([0-9a-f]{8})-(\d+)-(\d+)\.sock")

# Source: FHS 3.0, section 3.18. A folder of another user in it is not used.
_TEMPORARY = Path("/tmp")  # noqa: S108

# Chosen: more than the report of a process with the most ranks, in bytes.
_ANSWER_BYTES_MAX = 64 << 20


def serve(native: Any) -> None:
    """Opens the status socket; without one the program goes on, and logs the reason.

    Args:
      native: the native communicator, connected.
    """
    reasons: list[str] = []
    for folder in _own_folders():
        try:
            native.serve_status(str(folder))
        except RuntimeError as error:
            reasons.append(str(error))
        else:
            _remove_dead(folder)
            return
    _log.warning(
        "python -m jax_optireduce status will not show this process: %s",
        " ".join(reasons),
    )


def connect(client: socket.socket, path: Path) -> None:
    """Connects to a status socket.

    Raises:
      OSError: ConnectionRefusedError if its process is dead.
    """
    # An address is shorter than a path may be.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        client.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def read(path: Path, limit_s: float) -> bytes:
    """Returns the answer of the process with this status socket.

    Raises:
      OSError: it does not answer within `limit_s` seconds, or cannot be asked.
    """
    end = time.monotonic() + limit_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(limit_s)
        connect(client, path)
        parts: list[bytes] = []
        while sum(map(len, parts)) < _ANSWER_BYTES_MAX:
            # A timeout of 0 would not wait at all.
            client.settimeout(max(end - time.monotonic(), 1e-3))
            part = client.recv(1 << 20)
            if not part:
                break
            parts.append(part)
        return b"".join(parts)


def read_own(rank: int, limit_s: float) -> dict[str, Any]:
    """Returns the answer of this process; empty without one.

    Args:
      rank: of this process.
      limit_s: longest wait, in seconds.
    """
    for folder in _own_folders():
        for path in folder.glob(f"*-{rank}-{os.getpid()}.sock"):
            # A session that ends removes its socket.
            with contextlib.suppress(OSError, ValueError):
                return json.loads(read(path, limit_s))
    return {}


def _remove_dead(folder: Path) -> None:
    """Removes the sockets of processes that have died without removing them."""
    for path in folder.iterdir():
        if not NAME.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            try:
                connect(client, path)
            except ConnectionRefusedError:
                path.unlink()


def folders() -> list[Path]:
    """Returns the folders in which sockets of this user may be.

    A session of `ssh` may lack the environment of the job, or have another one.
    """
    uid = os.geteuid()
    usual = [Path(f"/run/user/{uid}/jax_optireduce"), _in_temporary(_TEMPORARY)]
    return list(dict.fromkeys([*_own_folders(), *usual]))


def _own_folders() -> list[Path]:
    """Returns the folders for the socket of this process, the preferred one first."""
    found: list[Path] = []
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime:
        found.append(Path(runtime) / "jax_optireduce")
    try:
        found.append(_in_temporary(Path(tempfile.gettempdir())))
    except FileNotFoundError:
        _log.debug("no folder for temporary files is writable")
    return found


def _in_temporary(folder: Path) -> Path:
    return folder / f"jax_optireduce-{os.geteuid()}"
