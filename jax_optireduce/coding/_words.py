"""Arrays as words of 32 bits, none of which is zero: a word of zero has not come."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_optireduce._errors import UsageError

# Odd constants with well mixed bits. Source: MurmurHash3, A. Appleby, public domain.
_MIX = (0x85EBCA6B, 0xC2B2AE35, 0x9E3779B1)

# The bits of -0.0.
_MINUS_ZERO = np.uint32(1 << 31)


def nonzero(x: jax.Array) -> jax.Array:
    """Returns the bits of float32 values; those of 0 are those of -0."""
    found = bits(x)
    # Not a comparison of floats, which takes subnormal values for 0.
    return jnp.where(found == 0, _MINUS_ZERO, found)


def bits(x: jax.Array) -> jax.Array:
    """Returns the bits of 32-bit values, uint32."""
    return lax.bitcast_convert_type(x, jnp.uint32)


def halves(words: jax.Array) -> jax.Array:
    """Returns two words for each, with a bit that is always set."""
    marked = jnp.stack([words & 0xFFFF, words >> 16], axis=-1) | 0x10000
    return marked.reshape(-1)


def joined(halves: jax.Array) -> jax.Array:
    """Undoes `halves` in the last dimension."""
    pairs = halves.reshape(*halves.shape[:-1], -1, 2) & 0xFFFF
    return pairs[..., 0] | (pairs[..., 1] << 16)


def carried_words(carried: Any) -> jax.Array:
    """Returns a tree as words, uint32 [n], none of which is zero."""
    words = [jnp.ones(1, jnp.uint32)]
    for leaf in map(jnp.asarray, jax.tree.leaves(carried)):
        if leaf.dtype == jnp.float32:
            words.append(nonzero(leaf.ravel()))
        else:
            words.append(halves(bits(_bytes(leaf).astype(jnp.uint32))))
    return jnp.concatenate(words)


def carried_of(words: jax.Array, like: Any) -> Any:
    """Undoes `carried_words`."""
    leaves, treedef = jax.tree.flatten(like)
    found, at = [], 1
    for leaf in map(jnp.asarray, leaves):
        if leaf.dtype == jnp.float32:
            part = words[at : at + leaf.size]
            at += leaf.size
            raw = jnp.where(part == _MINUS_ZERO, np.uint32(0), part)
            values = lax.bitcast_convert_type(raw, jnp.float32)
            found.append(values.reshape(leaf.shape))
            continue
        size = 2 * leaf.size * leaf.dtype.itemsize
        values = joined(words[at : at + size]).astype(jnp.uint8)
        at += size
        found.append(_of_bytes(values, leaf))
    return treedef.unflatten(found)


def _bytes(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise UsageError(
            f"combine cannot carry the dtype {leaf.dtype}; carry the data of a key, "
            "jax.random.key_data(key)."
        )
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8).ravel()
    return lax.bitcast_convert_type(leaf, jnp.uint8).ravel()


def _of_bytes(values: jax.Array, leaf: jax.Array) -> jax.Array:
    if leaf.dtype == jnp.bool_:
        return values.astype(jnp.bool_).reshape(leaf.shape)
    width = leaf.dtype.itemsize
    shape = leaf.shape if width == 1 else (*leaf.shape, width)
    return lax.bitcast_convert_type(values.reshape(shape), leaf.dtype)


def digest(words: jax.Array) -> jax.Array:
    """Returns a hash of the words and their places, uint32 [2]."""
    mixed = words * np.uint32(_MIX[0])
    mixed += jnp.arange(words.size, dtype=jnp.uint32) * np.uint32(_MIX[2])
    mixed = (mixed ^ (mixed >> 15)) * np.uint32(_MIX[1])
    mixed ^= mixed >> 13
    squared = mixed * (mixed >> 7 | 1)
    return jnp.stack([x.sum(dtype=jnp.uint32) for x in (mixed, squared)])
