"""Calls of the handlers: directly, or in a host computation.

A program for CPU devices calls the handlers with its own arrays; a program for GPU or
TPU devices calls them in host computations. `way` chooses.
"""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_optireduce import _native, _stats
from jax_optireduce._jax import lowering
from jax_optireduce._program import host_computation, identity, rotation
from jax_optireduce._program.host_computation import Way
from jax_optireduce._session import accelerators, communicator
from jax_optireduce._session.options import HOST_COMPUTATION

ALLREDUCE_TARGET = "jax_optireduce_allreduce"
SEQUENCE_TARGET = "jax_optireduce_sequence"
BEGIN_TARGET = "jax_optireduce_begin"
END_TARGET = "jax_optireduce_end"

# Platforms for which calls compile, by JAX's names.
PLATFORMS = ("cpu", *accelerators.PLATFORMS)


def way(platform: str, kind: str) -> Way:
    """Returns the way of the calls of a program.

    Args:
      platform: of the program.
      kind: the public function, for messages.

    Raises:
      UsageError: the plug-in of the platform has no handlers.
      NotInitializedError: there is no session.
    """
    if platform != "cpu":
        accelerators.check(platform, kind)
        return _ON_HOST
    wanted = communicator.current(kind).internal.host_call
    return _ON_HOST if wanted == HOST_COMPUTATION else _DIRECT


def _reduce(
    rank: jax.Array,
    step: jax.Array | None,
    leaves: Sequence[jax.Array],
    attributes: dict[str, Any],
    kept: Collection[int] = (),
) -> list[jax.Array]:
    # Besides memory, aliasing saves dependencies: XLA's reuse of buffers would chain
    # independent calls. XLA copies an array first that the program keeps; the handler
    # reads such a one where it lies.
    results = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    vector = jax.ShapeDtypeStruct((_stats.VECTOR_SIZE,), jnp.float32)
    call = lowering.ffi_call(
        ALLREDUCE_TARGET,
        (*results, vector),
        identity.title(attributes, leaves),
        aliases={i + 2: i for i in range(len(leaves)) if i not in kept},
    )
    return call(rank, _number(step), *leaves, **attributes)


def _take(
    rank: jax.Array, bucket: jax.Array, attributes: dict[str, Any]
) -> tuple[jax.Array, jax.Array]:
    draw = lowering.ffi_call(
        SEQUENCE_TARGET,
        (jax.ShapeDtypeStruct((), jnp.int32), jax.typeof(bucket)),
        f"optireduce number of {attributes['key']}",
        # Passed through: a read here and a write there would need two buffers.
        aliases={1: 1},
    )
    names = {name: attributes[name] for name in ("communicator", "name")}
    number, bucket = draw(rank, bucket, **names)
    return number, bucket


def _begin(
    rank: jax.Array,
    step: jax.Array | None,
    leaves: Sequence[jax.Array],
    attributes: dict[str, Any],
) -> jax.Array:
    token = jax.ShapeDtypeStruct((_native.TOKEN_ELEMENTS,), jnp.int32)
    title = f"{identity.title(attributes, leaves)} begin"
    call = lowering.ffi_call(BEGIN_TARGET, [token], title)
    salt = np.int64(rotation.salt_of(attributes))
    (begun,) = call(rank, _number(step), *leaves, **attributes, salt=salt)
    return begun


def _end(
    rank: jax.Array,
    token: jax.Array,
    after: Sequence[jax.Array],
    results: Sequence[Any],
) -> list[jax.Array]:
    vector = jax.ShapeDtypeStruct((_stats.VECTOR_SIZE,), jnp.float32)
    call = lowering.ffi_call(END_TARGET, (*results, vector), "optireduce end")
    return call(rank, token, *after, communicator=communicator.NAME)


def _number(step: jax.Array | None) -> jax.Array:
    # The session counts calls without a number.
    return jnp.int32(-1) if step is None else step


_DIRECT = Way(_reduce, _take, _begin, _end)
_ON_HOST = host_computation.on_host(_DIRECT)
