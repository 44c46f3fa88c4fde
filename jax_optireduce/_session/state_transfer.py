"""The state of a program, from a live rank to one that has come back.

The source copies its state to the host, and sends it in pieces, by exact sums with the
zeros of the receiver: bits stay as they are. The receiver has built a state of the same
structure, which gives shapes, dtypes and shardings, and verifies the SHA-256 of all
bytes. Each process has all elements of an array that is replicated over processes, also
where it is sharded over the devices of a process; an array that is sharded over
processes has no single source, and is refused.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_optireduce._errors import UsageError
from jax_optireduce._session import host_calls

# Bytes of a piece. Chosen: large enough for the rate of a link, and a small part of the
# memory of a host.
_PIECE_BYTES = 16 << 20

# Names of the collectives of transfers begin so.
NAME = "jax_optireduce state"

# Elements of a piece are added as int32, with zeros.
_ELEMENT_BYTES = 4


class TransferError(Exception):
    """The other side has left, or is silent."""


class Shards(NamedTuple):
    """A leaf on the host.

    Attributes:
      name: the path of the leaf.
      kind: dtype, shape and implementation, equal in the source and the receiver.
      arrays: its distinct shards on this process, in the order of their places.
    """

    name: str
    kind: str
    arrays: Sequence[np.ndarray]


def on_host(state: Any) -> list[Shards]:
    """Copies the leaves of a state to the host.

    Raises:
      UsageError: a leaf is no number or array, or is sharded over processes.
    """
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    return [_shards(jax.tree_util.keystr(path), leaf) for path, leaf in paths]


def rebuilt(state: Any, leaves: Sequence[Shards]) -> Any:
    """Returns a state like `state`, with the values of `leaves`."""
    given, treedef = jax.tree_util.tree_flatten(state)
    built = [_rebuilt(x, leaf.arrays) for x, leaf in zip(given, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(treedef, built)


def summary(leaves: Sequence[Shards]) -> str:
    """Describes the structure of a state; equal for equal ones."""
    kinds = [
        (leaf.name, leaf.kind, [array.shape for array in leaf.arrays])
        for leaf in leaves
    ]
    return json.dumps(kinds)


def difference(ours: str, theirs: str) -> str:
    """Describes the first difference of two summaries; empty without one."""
    if ours == theirs:
        return ""
    pairs = zip(json.loads(ours), json.loads(theirs), strict=False)
    for own, other in pairs:
        if own != other:
            return f"{own[0]} is {own[1]} here, and {other[0]} is {other[1]} there"
    return "one of them has more leaves"


def size_bytes(leaves: Sequence[Shards]) -> int:
    """Returns the bytes of all leaves."""
    return sum(array.nbytes for leaf in leaves for array in leaf.arrays)


def send(leaves: Sequence[Shards], communicator: str, pair: tuple[int, int]) -> str:
    """Sends the leaves; returns their SHA-256.

    Args:
      leaves: of the state.
      communicator: name of the native communicator.
      pair: (source, receiver), processes.

    Raises:
      TransferError: the receiver has left, or is silent.
    """
    digest = hashlib.sha256()
    for piece in _pieces(leaves):
        buffer, places = _buffer_for(piece)
        for part, place in zip(piece, places, strict=True):
            digest.update(part.data)
            place[:] = part
        _add(buffer, communicator, pair, own=0)
    return digest.hexdigest()


def receive(leaves: Sequence[Shards], communicator: str, pair: tuple[int, int]) -> str:
    """Receives values into the leaves; returns their SHA-256.

    Args:
      leaves: of a state of the same structure, whose arrays are overwritten.
      communicator: name of the native communicator.
      pair: (source, receiver), processes.

    Raises:
      TransferError: the source has left, or is silent.
    """
    digest = hashlib.sha256()
    for piece in _pieces(leaves):
        buffer, places = _buffer_for(piece)
        _add(buffer, communicator, pair, own=1)
        for part, place in zip(piece, places, strict=True):
            part[:] = place
            digest.update(part.data)
    return digest.hexdigest()


def _pieces(leaves: Sequence[Shards]) -> Iterator[list[np.ndarray]]:
    """Yields the memory of the leaves in pieces: each the parts of some leaves."""
    piece: list[np.ndarray] = []
    free_bytes = _PIECE_BYTES
    for array in (array for leaf in leaves for array in leaf.arrays):
        memory = array.reshape(-1).view(np.uint8)
        while memory.size:
            piece.append(memory[:free_bytes])
            memory = memory[free_bytes:]
            free_bytes -= piece[-1].size
            if not free_bytes:
                yield piece
                piece, free_bytes = [], _PIECE_BYTES
    if piece:
        yield piece


def _buffer_for(piece: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns zeros as int32 for a piece, and the place of each of its parts."""
    ends = np.cumsum([part.size for part in piece])
    buffer = np.zeros(-(-int(ends[-1]) // _ELEMENT_BYTES), np.int32)
    memory = buffer.view(np.uint8)
    return buffer, np.split(memory[: ends[-1]], ends[:-1])


def _add(
    buffer: np.ndarray, communicator: str, pair: tuple[int, int], *, own: int
) -> None:
    """Adds a piece over the pair, in place."""
    try:
        host_calls.allreduce(
            buffer,
            communicator=communicator,
            name=f"{NAME} from {pair[0]} to {pair[1]}",
            mode="exact",
            processes=pair,
            rank=own,
        )
    except RuntimeError as error:
        raise TransferError(
            f"the state did not pass from rank {pair[0]} to rank {pair[1]}: {error}"
        ) from error


def _shards(name: str, leaf: Any) -> Shards:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = _shards(name, jax.random.key_data(leaf))
        return words._replace(kind=f"{leaf.dtype}{list(leaf.shape)}")
    if not isinstance(leaf, jax.Array):
        return _of_numpy(name, leaf)
    by_place = {str(shard.index): shard for shard in leaf.addressable_shards}
    arrays = [np.array(by_place[x].data, order="C") for x in sorted(by_place)]
    if sum(array.size for array in arrays) < leaf.size:
        raise UsageError(
            f"the leaf {name} of the state, {leaf.dtype}{list(leaf.shape)}, is sharded "
            "over processes, so no single rank has it for one that comes back. Keep it "
            "in a checkpoint, or replicate it over processes."
        )
    return Shards(name, f"{leaf.dtype}{list(leaf.shape)}", arrays)


def _of_numpy(name: str, leaf: Any) -> Shards:
    array = np.array(leaf)
    if array.dtype.kind not in "biufcV" or array.dtype.hasobject:
        raise UsageError(
            f"the leaf {name} of the state must be an array or a number, got {leaf!r}."
        )
    return Shards(
        name, f"{array.dtype}{list(array.shape)}", [np.array(array, order="C")]
    )


def _rebuilt(like: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Returns a leaf like `like`, with the values of its distinct shards."""
    if not isinstance(like, jax.Array):
        (array,) = arrays
        return array if isinstance(like, np.ndarray) else type(like)(array[()])
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        words = _rebuilt(jax.random.key_data(like), arrays)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(like))
    if not like.committed:
        return jax.device_put(arrays[0])  # It compiles nothing.
    places = sorted({str(shard.index) for shard in like.addressable_shards})
    by_place = dict(zip(places, arrays, strict=True))
    parts = [
        jax.device_put(by_place[str(shard.index)], shard.device)
        for shard in like.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(like.shape, like.sharding, parts)
