"""The end of dispatched programs."""

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

try:
    from jax._src import xla_bridge as _bridge
except ImportError:  # Nothing is waited for.
    _bridge = None

_log = logging.getLogger("jax_optireduce")


def wait() -> None:
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
    groups = [(device,) for device in devices]
    if len(devices) > 1:
        groups.append(tuple(devices))
    for group in groups:
        program, mesh, spec = _program_on(group)
        sharding = jax.sharding.NamedSharding(mesh, spec)
        # The program may have set a mesh of all processes.
        with jax.set_mesh(mesh):
            yield program(jax.device_put(np.tile(block, (len(group), 1)), sharding))


@functools.cache
def _program_on(
    devices: tuple[Any, ...],
) -> tuple[Any, jax.sharding.Mesh, jax.sharding.PartitionSpec]:
    """Returns a program for these devices, and mesh and partition of its operand.

    It is made once, so that JAX compiles it once.
    """
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    mapped = jax.shard_map(lambda x: x @ x, mesh=mesh, in_specs=spec, out_specs=spec)
    return jax.jit(mapped), mesh, spec
