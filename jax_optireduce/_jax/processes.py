"""This process among those of the job, as JAX knows them."""

import atexit
import ctypes
import dataclasses
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax

try:
    from jax._src import distributed as _distributed
except ImportError:  # Public functions have a part of it.
    _distributed = None

try:
    from jax._src import api as _api
    from jax._src import xla_bridge as _bridge
    from jax._src.interpreters import mlir as _mlir
except ImportError:  # A forked process may hang at its end, as without this package.
    _api = _bridge = _mlir = None

# The setting of JAX that `own_slice` reads.
_PLATFORMS = "jax_platforms"

# The setting of JAX that `is_recoverable` reads.
RECOVERABILITY = "jax_enable_recoverability"


# Number of places for replicas, by which `process` stands for a number that changes.
REPLICAS_MAX = 1 << 31


@dataclasses.dataclass
class _Replica:
    """The place of this process among replicas: the only state of this module."""

    place: int | None = None


_replica = _Replica()


def is_replica() -> bool:
    """Whether this process is one of replicas."""
    return _replica.place is not None


def become_replica(place: int) -> None:
    """Makes this process one of replicas, which JAX does not connect."""
    _replica.place = place


def state() -> Any:
    """Returns JAX's record of this process in the job; None if JAX has none."""
    return getattr(_distributed, "global_state", None)


def process() -> tuple[int, int]:
    """Returns (index of this process, number of processes).

    A replica gets its place, and the number of places, since its session has any number
    of processes.
    """
    if _replica.place is not None:
        return _replica.place, REPLICAS_MAX
    if not jax.distributed.is_initialized():
        return 0, 1
    if (own := state()) is not None:
        return own.process_id, own.num_processes
    return jax.process_index(), jax.process_count()


def leave_to_parent() -> None:
    """In a forked process: lets JAX's connections and threads be its parent's.

    At its end JAX would use the connections, which fails the parent, and wait for the
    threads, which a fork does not copy.
    """
    if (clean_up := getattr(_api, "clean_up", None)) is not None:
        atexit.unregister(clean_up)
    for owner, name in (
        (state(), "client"),
        (state(), "service"),
        (state(), "preemption_sync_manager"),
        (_bridge, "_backends"),
        (_mlir, "global_thread_pool"),
    ):
        # Never destroyed: a destructor would do the same.
        held = ctypes.py_object(getattr(owner, name, None))
        ctypes.pythonapi.Py_IncRef(held)


def own_slice() -> int | None:
    """Returns the index of the TPU slice of this process; None on other platforms.

    Devices of other platforms may have the attribute too, as the index of their host.
    """
    platforms = getattr(jax.config, _PLATFORMS, None) or "tpu"
    has_plugin = "TPU_LIBRARY_PATH" in os.environ or bool(
        importlib.util.find_spec("libtpu")
    )
    # Elsewhere the devices are not needed, and the program may still configure them.
    if "tpu" not in platforms.split(",") or not has_plugin:
        return None
    device = jax.local_devices()[0]
    return getattr(device, "slice_index", None) if device.platform == "tpu" else None


def is_recoverable() -> bool:
    """Whether JAX leaves the other processes alive after the death of one."""
    return bool(getattr(jax.config, RECOVERABILITY))


def coordinator_address(given: str = "") -> str | None:
    """Returns "host:port" of JAX's coordination service, or None if unknown.

    Args:
      given: the result if JAX has no record of it; "": that of the environment.
    """
    address = getattr(state(), "coordinator_address", None)
    return address or given or os.environ.get("JAX_COORDINATOR_ADDRESS")


class _PreemptionQueries:
    """Replaces JAX's preemption sync manager until the first query of a program."""

    def __init__(self, state: Any, manager: Any, on_query: Callable[[], None]) -> None:
        self._state = state
        self._manager = manager
        self._on_query = on_query

    def reached_sync_point(self, step: int) -> bool:
        self._state.preemption_sync_manager = self._manager
        self._on_query()
        return self._manager.reached_sync_point(step)

    def shutdown(self) -> None:
        self._manager.shutdown()


def on_preemption_query(callback: Callable[[], None]) -> None:
    """Calls `callback` before the program's first query of a preemption.

    The query is `multihost_utils.reached_preemption_sync_point`, as in Orbax.
    """
    own = state()
    manager = getattr(own, "preemption_sync_manager", None)
    if manager is not None:
        own.preemption_sync_manager = _PreemptionQueries(own, manager, callback)
