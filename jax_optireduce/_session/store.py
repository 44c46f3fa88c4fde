"""The store of a session of replicas: the entries on which its processes agree.

The coordinator keeps them, for processes that JAX does not connect with each other. A
client has the operations of the client of JAX's coordination service, so that
`coordination` uses either. Both sides prove that they know the token before the first
request; requests and answers are not encrypted.

A store that was started again is empty. Each client then enters the news that it knows
(`plans.NEWS`): of a number the larger one stands.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import AuthenticationError, connection
from pathlib import Path
from typing import Any

import jax

from jax_optireduce._errors import RendezvousError, UsageError
from jax_optireduce._session import plans, roll_call

_log = logging.getLogger("jax_optireduce")

# Largest request and answer, in bytes, and largest number of entries. Chosen: the plans
# and news of some thousand replicas.
_MESSAGE_BYTES_MAX = 16 << 20
_ENTRIES_MAX = 1 << 17

# Largest number of connections that have not proven the token. Chosen: more than the
# replicas that start in the same second.
_STRANGERS_MAX = 256

# Longest wait for the other side within a request, in seconds. Chosen: longer than the
# way over an ocean.
_ANSWER_S = 5.0

# Time between two attempts to reach the coordinator, and between two looks for an entry
# that does not exist yet, in seconds. Chosen: short for a user, and some hundred
# requests per second.
_RETRY_S = 0.2
_LOOK_S = 0.02


# Errors of a connection, and of a peer that does not talk as this module does.
_BROKEN = (OSError, EOFError, AuthenticationError, ValueError)


class StoreError(jax.errors.JaxRuntimeError):
    """An operation failed; the text begins as that of JAX's service."""


class Entries:
    """Entries by key, and the operations on them."""

    def __init__(self) -> None:
        """Makes a store without entries, with an identity of its own."""
        self.identity = secrets.token_hex(8)
        self._begun_s = time.monotonic()
        self._entries: dict[str, str] = {}
        self._lock = threading.Lock()

    def do(self, operation: str, key: str, value: str) -> Any:
        """Does an operation.

        Raises:
          ValueError: it does not exist, or there are too many entries.
        """
        with self._lock:
            if operation == "age":
                return time.monotonic() - self._begun_s
            if operation == "get":
                return self._entries.get(key)
            if operation == "folder":
                return self._folder(key)
            if operation == "delete":
                for name in [key, *(f"{key}/{rest}" for rest in self._folder(key))]:
                    self._entries.pop(name, None)
                return None
            if len(self._entries) >= _ENTRIES_MAX and key not in self._entries:
                raise ValueError(f"the store is full: {_ENTRIES_MAX} entries.")
            before = self._entries.get(key)
            if operation == "claim" and before is not None:
                return before
            if operation == "add":
                value = str(int(before or 0) + int(value))
            elif operation == "raise":
                value = str(max(int(before or 0), int(value)))
            elif operation not in ("set", "claim"):
                raise ValueError(f"there is no operation {operation!r}.")
            self._entries[key] = value
            return value if operation == "add" else None

    def _folder(self, key: str) -> dict[str, str]:
        start = f"{key}/"
        found = self._entries.items()
        return {k.removeprefix(start): v for k, v in found if k.startswith(start)}


def read_token(path: str) -> str:
    """Returns the token in a file; "" without one.

    Raises:
      UsageError: the file cannot be read.
    """
    try:
        return Path(path).read_text().strip() if path else ""
    except OSError as error:
        raise UsageError(f"token_file={path!r} cannot be read: {error}.") from error


def serve(listener: socket.socket, token: str) -> None:
    """Serves a store until the listener is closed.

    Args:
      listener: of this process.
      token: which clients must know.
    """
    entries, strangers = Entries(), threading.Semaphore(_STRANGERS_MAX)
    listener.setblocking(True)
    while listener.fileno() >= 0:
        try:
            accepted, _ = listener.accept()
        except OSError:
            time.sleep(_RETRY_S)  # Such as without a free descriptor.
            continue
        if not strangers.acquire(blocking=False):
            accepted.close()
            continue
        threading.Thread(
            target=_serve_one, args=(accepted, token, entries, strangers), daemon=True
        ).start()


def _serve_one(
    accepted: socket.socket,
    token: str,
    entries: Entries,
    strangers: threading.Semaphore,
) -> None:
    """Serves one client."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(*_BROKEN))
        try:
            client = stack.enter_context(_wrapped(accepted))
            connection.deliver_challenge(client, token.encode())
            connection.answer_challenge(client, token.encode())
        finally:
            strangers.release()
        client.send_bytes(entries.identity.encode())
        _set_limit(client, 0.0)  # A client may be quiet for long.
        while True:
            request = json.loads(client.recv_bytes(_MESSAGE_BYTES_MAX))
            client.send_bytes(json.dumps(_answer(entries, request)).encode())


def _answer(entries: Entries, request: Any) -> list[Any]:
    """Returns [whether it went well, the result or the reason]."""
    try:
        operation, key, value = map(str, request)
        return [True, entries.do(operation, key, value)]
    except ValueError as error:
        return [False, str(error)]


def _wrapped(accepted: socket.socket) -> connection.Connection:
    """Returns a socket as a connection of messages, whose waits have a limit."""
    accepted.setblocking(True)
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wrapped = connection.Connection(accepted.detach())
    _set_limit(wrapped, _ANSWER_S)
    return wrapped


def _set_limit(wrapped: connection.Connection, limit_s: float) -> None:
    """Sets the longest wait within a message, in seconds; 0: none."""
    # Source: socket(7); the connection reads its descriptor, without Python's limits.
    limit = struct.pack("ll", int(limit_s), int(limit_s % 1 * 1e6))
    with socket.socket(fileno=os.dup(wrapped.fileno())) as held:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            held.setsockopt(socket.SOL_SOCKET, option, limit)


class Client:
    """The operations of the client of JAX's coordination service, on a store.

    Thread-safe. An operation that does not reach the store is tried once more.
    """

    def __init__(self, address: str, token: str, timeout_s: float) -> None:
        """Connects.

        Args:
          address: "host:port" of the coordinator.
          token: of the session.
          timeout_s: longest wait for the coordinator, in seconds.

        Raises:
          RendezvousError: it does not answer, or has another token.
        """
        self._address = address
        self._token = token.encode()
        self._lock = threading.Lock()
        self._connection: connection.Connection | None = None
        self._identity = ""
        # The news that this process has read or entered, by key.
        self._news: dict[str, str] = {}
        end = time.monotonic() + timeout_s
        while (error := self._first_error()) is not None:
            if time.monotonic() >= end:
                raise RendezvousError(
                    f"no coordinator of replicas answers at {address} within "
                    f"{timeout_s:g} s: {error}. Start python -m jax_optireduce "
                    f"coordinator --replicas --port {address.rpartition(':')[2]} "
                    "there; its TCP port must be open."
                ) from error
            time.sleep(_RETRY_S)

    def _first_error(self) -> Exception | None:
        """Connects; returns why it is not possible now, or None."""
        try:
            with self._lock:
                self._connect()
        except AuthenticationError as error:
            raise RendezvousError(
                f"the coordinator at {self._address} has another token: give it and "
                "all replicas a token_file with the same content."
            ) from error
        except (OSError, EOFError, ValueError) as error:
            return error
        return None

    # ---- The operations, by the names of JAX's client.

    def key_value_set_bytes(
        self, key: str, value: bytes, allow_overwrite: bool = False
    ) -> None:
        """Makes an entry.

        Raises:
          StoreError: it exists, or the store does not answer.
        """
        text = value.decode("latin-1")
        before = self._do("set" if allow_overwrite else "claim", key, text)
        if before is not None:
            raise StoreError(f"ALREADY_EXISTS: {key!r} exists.")
        if key.startswith(plans.NEWS):
            self._news[key] = text

    def key_value_try_get_bytes(self, key: str) -> bytes:
        """Returns an entry.

        Raises:
          StoreError: it does not exist, or the store does not answer.
        """
        found = self._do("get", key)
        if found is None:
            raise StoreError(f"NOT_FOUND: {key!r} does not exist.")
        return found.encode("latin-1")

    def blocking_key_value_get_bytes(self, key: str, timeout_ms: int) -> bytes:
        """Returns an entry once it exists.

        Raises:
          StoreError: it does not exist in time, or the store does not answer.
        """
        end = time.monotonic() + timeout_ms / 1000
        while (found := self._do("get", key)) is None:
            if time.monotonic() >= end:
                raise StoreError(f"DEADLINE_EXCEEDED: {key!r} does not exist.")
            time.sleep(_LOOK_S)
        return found.encode("latin-1")

    def key_value_dir_get_bytes(self, folder: str) -> Sequence[tuple[str, bytes]]:
        """Returns the entries of a folder.

        Raises:
          StoreError: the store does not answer.
        """
        found: Mapping[str, str] = self._do("folder", folder)
        if folder == plans.NEWS:
            self._news = {f"{folder}/{rest}": value for rest, value in found.items()}
        return [(f"{folder}/{k}", v.encode("latin-1")) for k, v in found.items()]

    def key_value_delete(self, key: str) -> None:
        """Removes an entry, and the folder of this name.

        Raises:
          StoreError: the store does not answer.
        """
        self._news.pop(key, None)
        self._do("delete", key)

    def key_value_increment(self, key: str, by: int) -> int:
        """Adds to a number, first 0; returns the sum.

        Raises:
          StoreError: the store does not answer.
        """
        total = self._do("add", key, str(by))
        if key.startswith(plans.NEWS):
            self._news[key] = total
        return int(total)

    def age_s(self) -> float:
        """Returns the age of the store, in seconds.

        Raises:
          StoreError: the store does not answer.
        """
        return self._do("age", "")

    # ---- The connection.

    def _do(self, operation: str, key: str, value: str = "") -> Any:
        with self._lock:
            try:
                try:
                    done, result = self._ask(operation, key, value)
                except (OSError, EOFError, ValueError):
                    self._disconnect()
                    self._connect()
                    done, result = self._ask(operation, key, value)
            except _BROKEN as error:
                self._disconnect()
                raise StoreError(
                    f"UNAVAILABLE: the coordinator at {self._address} does not "
                    f"answer: {error}."
                ) from error
        if not done:
            raise StoreError(f"FAILED_PRECONDITION: {result}")
        return result

    def _ask(self, operation: str, key: str, value: str) -> Any:
        if self._connection is None:
            raise EOFError("not connected")
        self._connection.send_bytes(json.dumps([operation, key, value]).encode())
        return json.loads(self._connection.recv_bytes(_MESSAGE_BYTES_MAX))

    def _connect(self) -> None:
        made = roll_call.connect(self._address, _ANSWER_S)
        self._connection = _wrapped(made)
        connection.answer_challenge(self._connection, self._token)
        connection.deliver_challenge(self._connection, self._token)
        identity = self._connection.recv_bytes(64).decode()
        if self._identity not in ("", identity):
            # A copy: other threads enter news at the same time.
            self._enter(dict(self._news))
        self._identity = identity

    def _enter(self, news: Mapping[str, str]) -> None:
        """Enters the known news into a store that was started again."""
        for key, value in news.items():
            self._ask("raise", key, value)
        _log.warning(
            "the coordinator at %s was started again; this process has entered the "
            "state of the session.",
            self._address,
        )

    def _disconnect(self) -> None:
        held, self._connection = self._connection, None
        if held is not None:
            with contextlib.suppress(OSError):
                held.close()
