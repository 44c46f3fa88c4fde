"""The only file with private names of JAX, which may change in any version.

`_jax_version` has the tested ones. Public functions are the fallback where they exist.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from jax_optireduce import _jax_version
from jax_optireduce._errors import OptiReduceError, RendezvousError, UsageError

try:
    from jax.core import ShapedArray
    from jax.experimental import compute_on as _compute_on
    from jax.experimental import multihost_utils
    from jax.extend.core import Primitive
    from jax.interpreters import mlir
except ImportError as missing:
    raise ImportError(_jax_version.moved(missing)) from missing

try:
    from jax._src import callback as _callback
    from jax._src import clusters as _clusters
    from jax._src import distributed as _distributed
    from jax._src import xla_bridge as _bridge
    from jaxlib.mlir import ir as _ir
except ImportError:  # Absent in this JAX: the fallbacks below apply.
    _callback = None
    _clusters = None
    _distributed = None
    _bridge = None
    _ir = None

_log = logging.getLogger("jax_optireduce")

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Whether JAX has the client of `publish` and `published`.
HAS_KEY_VALUE_CLIENT = _distributed is not None

# The setting of JAX that `own_slice` reads.
_PLATFORMS = "jax_platforms"

# The setting of JAX that `is_recoverable` reads.
RECOVERABILITY = "jax_enable_recoverability"

# Key of our counters in JAX's cache of a module during its lowering.
_ORDINALS = "jax_optireduce.ordinals"

# Name of the axis of a `jax.pmap` without `axis_name=`.
UNNAMED_PMAP_AXIS = "_internal_pmap_axis_name"


def _explained(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Explains an error about a name that an untested JAX lacks."""

    @functools.wraps(function)
    def explained(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            if _jax_version.is_tested(jax.__version__):
                raise
            raise OptiReduceError(_jax_version.moved(error)) from error

    return explained


# --- Types under shard_map -----------------------------------------------------------


@_explained
def varying_axes(x: Any) -> frozenset[str]:
    """Returns the manual axes over which `x` varies; empty under check_vma=False."""
    return frozenset(jax.typeof(x).mat.varying)


@_explained
def reduced_type(aval: Any, axes: Iterable[str]) -> Any:
    """Returns the type of a sum over `axes`, which does not vary over them."""
    varying = frozenset(aval.mat.varying) - frozenset(axes)
    manual_axis_type = aval.mat.update(varying=varying)
    return aval.update(manual_axis_type=manual_axis_type, weak_type=False)


def stats_type(rank_aval: Any, size: int) -> Any:
    """Returns the type of a statistics vector, made from that of the rank operand.

    For JAX it varies over no axis, so that a program can return it from any mesh.
    """
    return vector_type(rank_aval, size, np.float32)


@_explained
def vector_type(
    rank_aval: Any, size: int, dtype: Any, varying: Iterable[str] = ()
) -> Any:
    """Returns the type of a vector [size] that varies over some axes.

    Args:
      rank_aval: type of the rank operand, from which it is made.
      size: number of elements.
      dtype: of the vector.
      varying: the axes.
    """
    aval = rank_aval.update(shape=(size,), dtype=np.dtype(dtype), weak_type=False)
    manual_axis_type = aval.mat.update(varying=frozenset(varying))
    return aval.update(manual_axis_type=manual_axis_type)


def mesh_axes() -> dict[str, tuple[int, bool]]:
    """Returns (size, whether manual) of every axis of the mesh in context."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = frozenset(mesh.manual_axes)
    return {name: (size, name in manual) for name, size in mesh.shape.items()}


# --- Lowering ------------------------------------------------------------------------


@_explained
def lowering_mesh(ctx: Any) -> jax.sharding.Mesh:
    """Returns the devices of the program under lowering.

    Raises:
      UsageError: the program is lowered without devices.
    """
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    if not isinstance(mesh, jax.sharding.Mesh):
        raise UsageError(
            "a collective was lowered without a mesh of devices; call it inside "
            "jax.shard_map with a concrete mesh (or jax.pmap), not while exporting."
        )
    return mesh


@_explained
def automatic_axes(ctx: Any) -> tuple[str, ...]:
    """Returns the axes of the program under lowering that are not manual."""
    context = ctx.module_context.axis_context
    names = context.mesh.axis_names
    return tuple(name for name in names if name not in context.manual_axes)


@_explained
def mesh_of(aval: Any) -> Any:
    """Returns the abstract mesh in the type of an operand."""
    return aval.sharding.mesh


@_explained
def next_ordinal(ctx: Any, key: str) -> int:
    """Returns the number of equations with `key` lowered in this module before."""
    ordinals = ctx.module_context.lowering_cache.setdefault(_ORDINALS, {})
    ordinals[key] = ordinals.get(key, -1) + 1
    return ordinals[key]


@_explained
def without_manual_types(ctx: Any) -> Any:
    """Returns `ctx` with inputs of plain types, for the lowering of local code."""
    plain = [ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
    return ctx.replace(avals_in=plain)


@_explained
def on_host(function: Callable[..., Any], *operands: Any) -> Any:
    """Calls a function as a host computation; its results are on the device again."""
    # JAX 0.10 has another name for it.
    wrap: Any = getattr(_compute_on, "compute_on2", _compute_on.compute_on)
    call = wrap(
        function,
        compute_type="device_host",
        out_memory_spaces=jax.memory.Space.Device,
    )
    return call(*operands)


def ffi_call(
    target: str,
    results: Sequence[Any],
    title: str,
    aliases: dict[int, int] | None = None,
) -> Callable[..., list[Any]]:
    """Returns a function that calls a handler, like `jax.ffi.ffi_call`.

    XLA names the instruction, and so the event of a profile, after the location of the
    operation: there it is "ffi_call" for every call of every package.

    Args:
      target: the name of the handler, which may have side effects.
      results: shape and dtype of each result.
      title: of the call in a profile; XLA writes "_" for other characters than letters
        and digits.
      aliases: operand -> result that has its memory.
    """
    types = tuple(ShapedArray(x.shape, x.dtype) for x in results)
    rule = jax.ffi.ffi_lowering(
        target, has_side_effect=True, operand_output_aliases=dict(aliases or {})
    )

    def call(*operands: Any, **attributes: Any) -> list[Any]:
        def lower(ctx: Any, *operands: Any) -> Any:
            with _titled(title, ctx.name_stack):
                return rule(ctx, *operands, **attributes)

        return _ffi_call_p.bind(*operands, types=types, lower=lower)

    return call


def _titled(title: str, scope: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns the context of operations at the current place, with a title."""
    if _ir is None:
        return contextlib.nullcontext()
    place: Any = _ir.Location.current
    # The names that JAX has given it.
    while isinstance(place, _ir.NameLoc):
        place = place.child_loc
    # As JAX writes them: the type of the operation, and its name in all scopes.
    scoped = _ir.Location.name(f"{scope}/{title}".lstrip("/"), childLoc=place)
    return _ir.Location.name(f"{title}:", childLoc=scoped)


_ffi_call_p = Primitive("optireduce_ffi_call")
_ffi_call_p.multiple_results = True
_ffi_call_p.def_abstract_eval(lambda *_, types, **__: list(types))
mlir.register_lowering(
    _ffi_call_p,
    lambda ctx, *operands, lower, **_: lower(ctx, *operands),
    cacheable=False,
)


def host_callback(
    function: Callable[..., Sequence[np.ndarray]],
    results: Sequence[Any],
    *operands: Any,
) -> list[Any]:
    """Calls a Python function on this host, once for each device; always.

    Unlike `jax.experimental.io_callback` the function receives NumPy arrays: there,
    arrays of 100,000 floats wait for ever on CPU devices.

    Args:
      function: of NumPy arrays; returns a sequence of them.
      results: shape and dtype of each result.
      *operands: arrays of one device, where all axes are manual.
    """
    types = tuple(ShapedArray(x.shape, x.dtype) for x in results)
    return _host_callback_p.bind(*operands, function=function, types=types)


@_explained
def _lower_host_callback(ctx: Any, *operands: Any, function: Any, types: Any) -> Any:
    del types
    if _callback is None:
        raise UsageError(
            "this release of JAX has no callbacks for this package; install one of the "
            "range that python -m jax_optireduce doctor names."
        )
    context = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):
        # The others have one device, but JAX refuses them here.
        manual = frozenset(context.mesh.axis_names)
        context = dataclasses.replace(context, manual_axes=manual)
    sharding = _callback._callback_op_sharding(  # noqa: SLF001
        context, None, ctx.avals_out
    )
    results, _, _ = mlir.emit_python_callback(
        ctx,
        function,
        None,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=False,
        sharding=sharding,
    )
    return results


_host_callback_p = Primitive("optireduce_host_callback")
_host_callback_p.multiple_results = True
_host_callback_p.def_abstract_eval(lambda *_, types, **__: list(types))
# Not cacheable: on TPU each callback has a channel of its own.
mlir.register_lowering(_host_callback_p, _lower_host_callback, cacheable=False)


# --- Programs ------------------------------------------------------------------------


def wait_for_programs() -> None:
    """Waits for the end of the dispatched programs; ignores their errors.

    JAX has no call for that. A program that is dispatched now ends after the earlier
    programs of this thread: on a CPU, XLA starts the programs of a thread in order
    (those for one device, and those for several), except for tiny ones; GPUs and TPUs
    do, too. For the programs of other threads this waits if their results are still
    referenced.
    """
    if _bridge is None or not _bridge.backends_are_initialized():
        return
    try:
        results = []
        for platform in _bridge.backends():
            devices = jax.local_devices(backend=platform)
            results += [*jax.live_arrays(platform), *_dispatch_last(devices)]
    except Exception as error:  # noqa: BLE001 (at exit there is no remedy)
        _log.debug("cannot wait for programs: %s", error)
        return
    for result in results:
        # The program sees its errors; a deleted array raises one, too.
        with contextlib.suppress(Exception):
            result.block_until_ready()


def _dispatch_last(devices: Sequence[Any]) -> Iterator[jax.Array]:
    """Dispatches a program for each device, and one for all devices."""
    # Chosen: 0.5 million operations; XLA runs programs of some thousands immediately.
    block = np.ones((64, 64), np.float32)
    groups = [[device] for device in devices]
    if len(devices) > 1:
        groups.append(list(devices))
    for group in groups:
        mesh = jax.sharding.Mesh(np.array(group), ("d",))
        spec = jax.sharding.PartitionSpec("d")
        sharding = jax.sharding.NamedSharding(mesh, spec)
        # The program may have set a mesh of all processes.
        with jax.set_mesh(mesh):
            rows = jax.device_put(np.tile(block, (len(group), 1)), sharding)
            mapped = jax.shard_map(
                lambda x: x @ x, mesh=mesh, in_specs=spec, out_specs=spec
            )
            yield jax.jit(mapped)(rows)


# --- Processes -----------------------------------------------------------------------


def process() -> tuple[int, int]:
    """Returns (index of this process, number of processes)."""
    if not jax.distributed.is_initialized():
        return 0, 1
    if _distributed is not None:
        state = _distributed.global_state
        return state.process_id, state.num_processes
    return jax.process_index(), jax.process_count()


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


def coordinator_address() -> str | None:
    """Returns "host:port" of JAX's coordination service, or None if unknown."""
    state = getattr(_distributed, "global_state", None)
    address = getattr(state, "coordinator_address", None)
    return address or os.environ.get("JAX_COORDINATOR_ADDRESS")


def in_cluster() -> bool:
    """Whether JAX detects a cluster of several processes (SLURM, Kubernetes, ...)."""
    types = getattr(getattr(_clusters, "ClusterEnv", None), "_cluster_types", ())
    for cluster in types:
        if cluster.opt_in_only_method or not cluster.is_env_present():
            continue
        try:
            if (cluster.get_process_count() or 1) > 1:
                return True
        except (AttributeError, NotImplementedError, OSError, ValueError, KeyError):
            continue
    return False


def _let_jax_read_its_variables() -> None:
    """Lets `jax.distributed.initialize()` read those that JAX does not read itself."""
    base: Any = getattr(_clusters, "ClusterEnv", None)
    if base is None:
        return
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

    class Variables(base):
        """The job of the three variables, as a cluster of JAX."""

        name = "jax_optireduce"
        is_env_present = staticmethod(lambda: all(map(os.environ.get, names)))
        get_coordinator_address = staticmethod(lambda *_, **__: os.environ[names[0]])
        get_process_count = staticmethod(lambda: int(os.environ[names[1]]))
        get_process_id = staticmethod(lambda: int(os.environ[names[2]]))
        get_local_process_id = staticmethod(lambda: None)

    # They precede a cluster, as in `init`.
    base._cluster_types.remove(Variables)  # noqa: SLF001
    base._cluster_types.insert(0, Variables)  # noqa: SLF001


_let_jax_read_its_variables()


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
    state: Any = getattr(_distributed, "global_state", None)
    manager = getattr(state, "preemption_sync_manager", None)
    if manager is not None:
        state.preemption_sync_manager = _PreemptionQueries(state, manager, callback)


def publish(key: str, value: bytes) -> None:
    """Publishes `value` under `key`; ignores failures, as at exit."""
    client = _client()
    if client is not None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            client.key_value_set_bytes(key, value)


def await_published(key: str, rank: int, timeout_s: float) -> None:
    """Waits until process `rank` has published `key`.

    Raises:
      RendezvousError: it did not in time.
    """
    client = _client()
    if client is not None:
        _get(client, key, rank, process()[1], timeout_s)


def published(folder: str) -> dict[str, bytes]:
    """Returns the values published in a folder, by the last part of the key.

    The result is empty if JAX's coordination service does not answer.
    """
    client = _client()
    if client is None:
        return {}
    try:
        entries = client.key_value_dir_get_bytes(folder)
    except jax.errors.JaxRuntimeError:
        return {}
    return {key.rsplit("/", 1)[-1]: value for key, value in entries}


def _client() -> Any:
    """Returns the key-value client of JAX's coordination service, or None."""
    return getattr(getattr(_distributed, "global_state", None), "client", None)


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


def share(key: str, value: bytes, timeout_s: float) -> bytes:
    """Returns the value of process 0 on every process; `forget` it afterwards.

    Args:
      key: not used before; the same on all ranks.
      value: at least one byte; read on process 0 only.
      timeout_s: longest wait for process 0, in seconds.

    Raises:
      RendezvousError: process 0 did not share a value in time.
    """
    rank, world_size = process()
    if world_size == 1:
        return value
    client = _client()
    if client is None:
        return _exchange_publicly(value)[0]
    if rank == 0:
        client.key_value_set_bytes(key, value)
        return value
    return _get(client, key, 0, world_size, timeout_s)


def forget(key: str) -> None:
    """Removes the value shared under `key`, if it exists."""
    client = _client()
    if client is not None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            client.key_value_delete(key)


def exchange(label: str, payload: bytes, timeout_s: float) -> list[bytes]:
    """Sends `payload` to every process; returns all payloads, in rank order.

    Args:
      label: names this exchange; the same on all ranks, used once.
      payload: at least one byte; lengths may differ between ranks.
      timeout_s: longest wait for each process, in seconds.

    Raises:
      RendezvousError: a process did not send its payload in time.
    """
    rank, world_size = process()
    if world_size == 1:
        return [payload]
    client = _client()
    if client is None:
        return _exchange_publicly(payload)
    client.key_value_set_bytes(f"{label}/{rank}", payload)
    return [
        _get(client, f"{label}/{peer}", peer, world_size, timeout_s)
        for peer in range(world_size)
    ]


def _get(client: Any, key: str, peer: int, world_size: int, timeout_s: float) -> bytes:
    """Returns the entry of `peer`, once it exists."""
    try:
        return client.blocking_key_value_get_bytes(key, int(timeout_s * 1000))
    except jax.errors.JaxRuntimeError as error:
        raise RendezvousError(
            f"process {peer} of {world_size} did not join the rendezvous within "
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
) -> dict[int, bytes]:
    """Sends `payload` to every live process; returns the payloads of those, by rank.

    Args:
      label: names this exchange; the same on all ranks, used once.
      payload: at least one byte; lengths may differ between ranks.
      silent: returns the processes to leave out.
      timeout_s: longest wait for each process, in seconds; None: unlimited.

    Raises:
      RendezvousError: a process did not send its payload in time, or JAX's coordination
        service failed.
    """
    rank, world_size = process()
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
