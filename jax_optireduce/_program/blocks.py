"""The bucket of a collective with one stage: a block for each rank of the group.

On the wire the members are processes, in ascending order, and the shard of a process
is contiguous. So the blocks in the bucket are in the order of the processes; a process
with several devices has several blocks.

An all_gather moves values without arithmetic. Unless the wire format rounds them, they
travel as 32-bit words, so that every dtype arrives with its bits, those of NaN and -0.0
included: the devices of a process add their buckets, which are zero outside their
blocks, and integers add exactly.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_optireduce._errors import UsageError
from jax_optireduce._program import hadamard, host_computation, rotation
from jax_optireduce._program.call import Call
from jax_optireduce._program.concatenate import concatenate

_WORD_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of the blocks in the buckets of some groups.

    Attributes:
      ranks: int [groups, ranks]: the rank of each block.
      blocks: int [groups, ranks]: the block of each rank.
    """

    ranks: np.ndarray
    blocks: np.ndarray

    @classmethod
    def of(cls, processes: np.ndarray, kind: str) -> "Order":
        """Returns the order for groups whose ranks are on the given processes.

        Args:
          processes: int [groups, ranks].
          kind: the public function, for messages.

        Raises:
          UsageError: the processes of a group have different numbers of its ranks.
        """
        for group in processes:
            found, counts = np.unique(group, return_counts=True)
            if counts.min() != counts.max():
                numbers = dict(zip(found.tolist(), counts.tolist(), strict=True))
                raise UsageError(
                    f"{kind} needs the same number of devices of the axis on every "
                    f"process, got {numbers} (by process); choose a mesh that has it."
                )
        ranks = np.argsort(processes, axis=1, kind="stable")
        return cls(ranks, np.argsort(ranks, axis=1, kind="stable"))

    def by_process(self, rows: jax.Array, rank: jax.Array) -> jax.Array:
        """Returns rows in the order of the ranks as blocks.

        Args:
          rows: [ranks, n].
          rank: int32 [2], see `allreduce`.
        """
        return self._permuted(rows, self.ranks, rank)

    def by_rank(self, blocks: jax.Array, rank: jax.Array) -> jax.Array:
        """Undoes `by_process`."""
        return self._permuted(blocks, self.blocks, rank)

    def own(self, blocks: jax.Array, rank: jax.Array) -> jax.Array:
        """Returns the block of this rank, [n]."""
        return lax.dynamic_index_in_dim(blocks, self._block(rank), keepdims=False)

    def placed(self, block: jax.Array, rank: jax.Array) -> jax.Array:
        """Returns the bucket, [ranks, n], of zeros but for the block of this rank."""
        bucket = jnp.zeros((self.ranks.shape[1], block.size), block.dtype)
        return lax.dynamic_update_index_in_dim(bucket, block, self._block(rank), 0)

    def _block(self, rank: jax.Array) -> jax.Array:
        return jnp.asarray(self.blocks, jnp.int32)[rank[0], rank[1]]

    @staticmethod
    def _permuted(rows: jax.Array, order: np.ndarray, rank: jax.Array) -> jax.Array:
        if np.array_equal(order, np.broadcast_to(np.arange(len(rows)), order.shape)):
            return rows
        return rows[jnp.asarray(order, jnp.int32)[rank[0]]]


def reduce(
    rank: jax.Array,
    step: jax.Array | None,
    leaves: Sequence[jax.Array],
    call: Call,
    attributes: dict[str, Any],
    way: host_computation.Way,
) -> list[jax.Array]:
    """Scatters leaves [ranks, ...], or gathers leaves, in place in one bucket."""
    processes = attributes["group_processes"].reshape(-1, attributes["group_size"])
    order = Order.of(processes, call.kind)
    if call.operation == "all_gather":
        own = block_of(leaves, call.wire_format)
        bucket, vector = way.reduce(rank, step, [order.placed(own, rank)], attributes)
        return [*gathered(order.by_rank(bucket, rank), leaves), vector]
    bucket = order.by_process(rows_of(leaves), rank)
    n, dtype = bucket.shape[1], bucket.dtype
    if not call.rotated or call.drain:
        total, vector = way.reduce(rank, step, [bucket], attributes)
        return [*scattered(order.own(total, rank), leaves), vector]
    step, bucket = rotation.numbered(rank, step, bucket, attributes, way)
    key = rotation.key_of(step, rotation.salt_of(attributes))
    wide = jnp.promote_types(dtype, jnp.float32)
    # Each row by itself: its owner decodes it alone.
    encode = functools.partial(hadamard.encode, key=key)
    encoded = jax.vmap(encode)(bucket.astype(wide)).astype(dtype)
    total, vector = way.reduce(rank, step, [encoded], attributes)
    row = order.own(total, rank).astype(wide)
    decoded = hadamard.decode(row, n, key=key).astype(dtype)
    return [*scattered(decoded, leaves), vector]


def rows_of(leaves: Sequence[jax.Array]) -> jax.Array:
    """Returns leaves [ranks, ...] of one dtype as one bucket, [ranks, n]."""
    return concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves])


def scattered(row: jax.Array, leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the leaves, without their first dimension, in a row of `rows_of`."""
    shapes = [leaf.shape[1:] for leaf in leaves]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = jnp.split(row, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def block_of(leaves: Sequence[jax.Array], wire_format: str) -> jax.Array:
    """Returns leaves as one block, [n]: words, or float32 if that is rounded."""
    if wire_format != "float32":
        parts = [leaf.reshape(-1) for leaf in leaves]
    else:
        parts = [_words(leaf) for leaf in leaves]
    return concatenate([part[None] for part in parts])[0]


def gathered(blocks: jax.Array, leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the leaves of all ranks, [ranks, ...], in the blocks of `block_of`.

    Args:
      blocks: [ranks, n], by rank.
      leaves: those of this rank.
    """
    rounded = blocks.dtype != jnp.int32
    sizes = [leaf.size if rounded else words_in(leaf) for leaf in leaves]
    parts = jnp.split(blocks, np.cumsum(sizes)[:-1], axis=1)
    found = []
    for part, leaf in zip(parts, leaves, strict=True):
        values = part if rounded else _values(part, leaf)
        found.append(values.reshape(len(blocks), *leaf.shape))
    return found


def words_in(leaf: jax.Array) -> int:
    """Returns the number of words of a leaf."""
    return -(-leaf.size * _carrier(leaf.dtype).itemsize // _WORD_BYTES)


def _carrier(dtype: np.dtype) -> np.dtype:
    """Returns the dtype whose bits carry the values."""
    if dtype == jnp.bool_:
        return np.dtype(np.uint8)
    return np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")


def _words(leaf: jax.Array) -> jax.Array:
    carrier = _carrier(leaf.dtype)
    flat = leaf.reshape(-1)
    if leaf.dtype == jnp.bool_:
        flat = flat.astype(carrier)
    if carrier.itemsize >= _WORD_BYTES:
        return lax.bitcast_convert_type(flat, jnp.int32).reshape(-1)
    flat = lax.bitcast_convert_type(flat, carrier)
    in_word = _WORD_BYTES // carrier.itemsize
    padded = jnp.pad(flat, (0, -flat.size % in_word))
    return lax.bitcast_convert_type(padded.reshape(-1, in_word), jnp.int32)


def _values(words: jax.Array, leaf: jax.Array) -> jax.Array:
    """Returns [rows, leaf.size] of the dtype of the leaf, from [rows, words]."""
    rows = words.shape[0]
    carrier = _carrier(leaf.dtype)
    if carrier.itemsize > _WORD_BYTES:
        words = words.reshape(rows, leaf.size, -1)
        return lax.bitcast_convert_type(words, leaf.dtype)
    if carrier.itemsize == _WORD_BYTES:
        return lax.bitcast_convert_type(words, leaf.dtype)
    values = lax.bitcast_convert_type(words, carrier).reshape(rows, -1)
    values = values[:, : leaf.size]
    if leaf.dtype == jnp.bool_:
        return values.astype(jnp.bool_)
    return lax.bitcast_convert_type(values, leaf.dtype)
