"""The entries of JAX's coordination service, which all processes share."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jax_optireduce import _jax_version
from jax_optireduce._errors import RendezvousError
from jax_optireduce._jax import processes

try:
    from jax.experimental import multihost_utils
except ImportError as missing:
    raise ImportError(_jax_version.moved(missing)) from missing


# Longest wait inside of JAX of a thread whose waits end with an event, in milliseconds.
# Chosen: short for the end of a process.
_INTERRUPTIBLE_MS = 100


@dataclasses.dataclass
class _Own:
    """A client in place of that of JAX's service, see `use`."""

    client: Any = None


_own = _Own()


def use(client: Any) -> None:
    """Uses the entries of another service, by a client with the same operations."""
    _own.client = client


def age_s() -> float:
    """Returns the age of the service, in seconds; infinite for JAX's.

    It is 0 if the service does not answer.
    """
    if _own.client is None:
        return float("inf")
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        return _own.client.age_s()
    return 0.0


def has_service() -> bool:
    """Whether JAX has the client of the service; without it entries are not kept."""
    return processes.state() is not None


def _client() -> Any:
    """Returns the key-value client of JAX's coordination service, or None."""
    if _own.client is not None:
        return _own.client
    return getattr(processes.state(), "client", None)


def publish(key: str, value: bytes, *, again: bool = False) -> None:
    """Publishes `value` under `key`; ignores failures, as at exit.

    Args:
      key: not used before, unless `again`.
      value: at least one byte.
      again: whether it replaces an earlier value.
    """
    client = _client()
    if client is not None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            client.key_value_set_bytes(key, value, again)


def entry(key: str) -> bytes | None:
    """Returns the value under `key`; None without one, or without an answer."""
    client = _client()
    if client is None:
        return None
    try:
        return client.key_value_try_get_bytes(key)
    except jax.errors.JaxRuntimeError:
        return None


def await_entry(key: str, limit_s: float, over: threading.Event) -> bytes | None:
    """Returns the value under `key` once it exists; None if it does not in time.

    Args:
      key: of the entry.
      limit_s: longest wait, in seconds.
      over: ends the wait soon.
    """
    client, end = _client(), time.monotonic() + limit_s
    while (found := entry(key)) is None and not over.is_set():
        left_s = end - time.monotonic()
        if client is None or left_s <= 0:
            return None
        limit_ms = min(_INTERRUPTIBLE_MS, 1 + int(left_s * 1000))
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            return client.blocking_key_value_get_bytes(key, limit_ms)
    return found


def await_published(key: str, rank: int, timeout_s: float) -> None:
    """Waits until process `rank` has published `key`.

    Raises:
      RendezvousError: it did not in time.
    """
    client = _client()
    if client is not None:
        _get(client, key, rank, processes.process()[1], timeout_s)


def published(folder: str) -> dict[str, bytes]:
    """Returns the values published in a folder, by the rest of the key.

    The result is empty if JAX's coordination service does not answer.
    """
    client = _client()
    if client is None:
        return {}
    try:
        entries = client.key_value_dir_get_bytes(folder)
    except jax.errors.JaxRuntimeError:
        return {}
    return {key.removeprefix(f"{folder}/"): value for key, value in entries}


def increment(key: str) -> int:
    """Adds 1 to the number under `key`, first 0; returns the sum, 1 without the client.

    Raises:
      RendezvousError: the coordination service failed.
    """
    client = _client()
    if client is None:
        return 1
    try:
        return int(client.key_value_increment(key, 1))
    except jax.errors.JaxRuntimeError as error:
        raise RendezvousError(
            "JAX's coordination service does not answer: " + str(error).splitlines()[0]
        ) from error


def claim(key: str, value: bytes) -> bytes | None:
    """Enters `value` under `key`, unless an entry exists.

    Returns:
      The previous entry, or None if the entry is `value`, or without the service.

    Raises:
      RendezvousError: the coordination service failed.
    """
    client = _client()
    if client is None:
        return None
    try:
        client.key_value_set_bytes(key, value)
    except jax.errors.JaxRuntimeError as error:
        try:
            return client.key_value_try_get_bytes(key)
        except jax.errors.JaxRuntimeError:
            raise RendezvousError(
                "JAX's coordination service gave an unexpected answer: "
                + str(error).splitlines()[0]
            ) from error
    return None


def share(
    key: str, value: bytes, timeout_s: float, rank: int, source: int = 0
) -> bytes:
    """Returns the value of one process on every process; `forget` it afterwards.

    Args:
      key: not used before; the same on all ranks.
      value: at least one byte; read on the process `source` only.
      timeout_s: longest wait for that process, in seconds.
      rank: index of this process among those that share.
      source: index of the process.

    Raises:
      RendezvousError: the process did not share a value in time.
    """
    world_size = processes.process()[1]
    if world_size == 1:
        return value
    client = _client()
    if client is None:
        return _exchange_publicly(value)[source]
    if rank == source:
        client.key_value_set_bytes(key, value)
        return value
    return _get(client, key, source, world_size, timeout_s)


def forget(key: str) -> None:
    """Removes the value under `key`, or all values of that folder, if they exist."""
    client = _client()
    if client is not None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            client.key_value_delete(key)


# Where process 0 enters the devices of all processes: a prefix of the backend, and the
# name of the platform. Source: `ExchangeTopologies` of XLA. The first was tried, the
# others are for GPUs.
_TOPOLOGIES = (
    "cpu:global_topology/cpu",
    "gpu:global_topology/gpu",
    "gpu:global_topology/cuda",
    "gpu:global_topology/rocm",
    "cuda:global_topology/cuda",
    "rocm:global_topology/rocm",
)


def forget_topology() -> None:
    """Lets a process 0 that was started again enter the devices of all processes.

    It enters the same ones, since those of the others are still there, but JAX
    overwrites no entry. Called before the first use of JAX's devices.
    """
    for key in _TOPOLOGIES:
        forget(key)


def exchange(
    label: str,
    payload: bytes,
    timeout_s: float,
    rank: int | None = None,
    members: Sequence[int] | None = None,
) -> list[bytes]:
    """Sends `payload` to every process; returns all payloads, in rank order.

    Args:
      label: names this exchange; the same on all ranks, used once.
      payload: at least one byte; lengths may differ between ranks.
      timeout_s: longest wait for each process, in seconds.
      rank: index of this process; None: in the job.
      members: the processes that take part, ascending; None: all of the job.

    Raises:
      RendezvousError: a process did not send its payload in time.
    """
    of_job, world_size = processes.process()
    if world_size == 1:
        return [payload]
    client = _client()
    if client is None:
        return _exchange_publicly(payload)
    own = of_job if rank is None else rank
    client.key_value_set_bytes(f"{label}/{own}", payload)
    return [
        _get(client, f"{label}/{peer}", peer, world_size, timeout_s)
        for peer in members or range(world_size)
    ]


class _Local(threading.local):
    """The event that ends the waits of a thread, see `waits_end_with`."""

    over: threading.Event | None = None


_local = _Local()


@contextlib.contextmanager
def waits_end_with(over: threading.Event) -> Iterator[None]:
    """Ends the waits of this thread for entries soon after an event.

    Python may not end while a thread waits inside of JAX: the process would abort.
    """
    _local.over = over
    try:
        yield
    finally:
        _local.over = None


def _get(client: Any, key: str, peer: int, world_size: int, timeout_s: float) -> bytes:
    """Returns the entry of `peer`, once it exists."""
    end = time.monotonic() + timeout_s
    over = _local.over
    while over is not None and not over.is_set() and time.monotonic() < end:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            return client.blocking_key_value_get_bytes(key, _INTERRUPTIBLE_MS)
    of_job = f"process {peer} of {world_size}"
    if processes.is_replica():
        of_job = f"the replica of rank {peer}"
    try:
        limit_ms = 1 if over is not None else int(timeout_s * 1000)
        return client.blocking_key_value_get_bytes(key, limit_ms)
    except jax.errors.JaxRuntimeError as error:
        raise RendezvousError(
            f"{of_job} did not join the rendezvous within "
            f"{timeout_s:g} s. Every process must call jax_optireduce.init() the same "
            "number of times; if one needs longer to start, set "
            "JAX_OPTIREDUCE_RENDEZVOUS_TIMEOUT_S. JAX's coordination service says: "
            + str(error).splitlines()[0]
        ) from error


def exchange_among_live(
    label: str,
    payload: bytes,
    silent: Callable[[], Sequence[int]],
    timeout_s: float | None,
    place: tuple[int, int],
) -> dict[int, bytes]:
    """Sends `payload` to every live process; returns the payloads of those, by rank.

    Args:
      label: names this exchange; the same on all ranks, used once.
      payload: at least one byte; lengths may differ between ranks.
      silent: returns the processes to leave out.
      timeout_s: longest wait for each process, in seconds; None: unlimited.
      place: index of this process, and number of processes.

    Raises:
      RendezvousError: a process did not send its payload in time, or JAX's coordination
        service failed.
    """
    rank, world_size = place
    client = _client()
    if world_size == 1:
        return {0: payload}
    if client is None:
        return dict(enumerate(_exchange_publicly(payload)))
    client.key_value_set_bytes(f"{label}/{rank}", payload)
    payloads = {}
    for peer in range(world_size):
        received = _get_from_live(client, label, peer, silent, timeout_s)
        if received is not None:
            payloads[peer] = received
    # All live processes have finished the exchange before the last one.
    _forget_exchanges(client, rank, label)
    return payloads


def _get_from_live(
    client: Any,
    label: str,
    peer: int,
    silent: Callable[[], Sequence[int]],
    timeout_s: float | None,
) -> bytes | None:
    """Returns the entry of `peer`, once it exists; None if the process is silent."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        gone = peer in silent()
        try:
            # An entry from before its death is the same for all processes. Chosen: a
            # death is noticed within a second.
            limit_ms = 1 if gone else 1000
            return client.blocking_key_value_get_bytes(f"{label}/{peer}", limit_ms)
        except jax.errors.JaxRuntimeError as error:
            if gone:
                return None
            in_time = end is None or time.monotonic() < end
            if "DEADLINE_EXCEEDED" in str(error) and in_time:
                continue
            raise RendezvousError(
                f"process {peer} did not take part in the exchange {label!r}. Every "
                "process must make the same calls of this package. JAX's coordination "
                "service says: " + str(error).splitlines()[0]
            ) from error


# Labels of the last exchanges whose entries of this process may still be read.
_last_exchanges: list[str] = []


def _forget_exchanges(client: Any, rank: int, label: str) -> None:
    """Removes the entry of this process of the exchange before this one."""
    for old in _last_exchanges:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            client.key_value_delete(f"{old}/{rank}")
    _last_exchanges[:] = [label]


def _exchange_publicly(payload: bytes) -> list[bytes]:
    """Exchanges payloads by an XLA collective, for a JAX without the client."""
    own = np.frombuffer(payload, np.uint8)
    sizes = multihost_utils.process_allgather(np.asarray([own.size], np.int32))
    sizes = np.asarray(sizes).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: own.size] = own
    rows = np.asarray(multihost_utils.process_allgather(padded))
    rows = rows.reshape(sizes.size, -1)
    return [rows[i, :size].tobytes() for i, size in enumerate(sizes)]
