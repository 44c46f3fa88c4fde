"""Randomised Hadamard transform: distributes a lost datagram over its bucket.

A call that ends without its last datagrams loses the same part of every gradient, and
those parameters would not be trained. `encode` rotates the bucket first, so that a lost
coefficient is noise on 1024 entries instead of the loss of one entry. The estimate is
unbiased for any pattern of losses that is independent of the signs. The rotation is
linear and the same on every rank, so ranks can add encoded buckets and decode the sum.

Three choices make the rotation fast and uniform:

* Blocks of 1024 entries, as H32 (x) H32: two matrix products instead of ten passes.
* A bucket of B blocks is seen as a matrix [1024, B] whose *columns* are blocks: entry
  i belongs to block i mod B. The result has the same shape, which is coefficient-major,
  without any transpose: a run of r lost coefficients costs each block ceil(r / B) of
  its 1024, any contiguous shard holds an equal share of every block (to one
  coefficient), and the zeros that fill up the last rows are shared out to all blocks.
* Signs are a hash of (key, position): a few integer operations that XLA fuses with
  their neighbours. The generator of `jax.random` is tens of times slower.

A NaN or an infinity affects its own block only, the entries i mod B.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Entries of a full block; a power of two.
# Chosen: interleaved blocks of 1024 behave under loss like one transform of the whole
# bucket, and 1024 = 32 * 32 needs two products by a matrix that stays in the L1 cache.
BLOCK_SIZE = 1024

ENCODE_TARGET = "jax_optireduce_hadamard_encode"
DECODE_TARGET = "jax_optireduce_hadamard_decode"

# Multipliers of a 32-bit integer mixing function with low bias.
# Source: Chris Wellons, "Prospecting for Hash Functions" (lowbias32, later constants).
_MIX_1 = np.uint32(0x21F0AAAD)
_MIX_2 = np.uint32(0xD35A2D97)
# 2^32 / golden ratio, made odd: makes a second, unrelated word out of the key.
# Source: Knuth, The Art of Computer Programming, volume 3, section 6.4.
_GOLDEN = np.uint32(0x9E3779B9)


def padded_size(n: int) -> int:
    """Returns the number of coefficients of `n` encoded entries.

    That is `n` rounded up to whole blocks of 1024; a shorter bucket is one block of the
    next power of two.
    """
    block = _block_size(n)
    return -(-n // block) * block


def encode(bucket: jax.Array, *, key: jax.Array) -> jax.Array:
    """Rotates a bucket, orthonormally, with signs from the key.

    Args:
      bucket: float32 or float64, of any shape, n entries.
      key: uint32 [], equal on every rank, different for every call.

    Returns:
      The coefficients, same dtype, coefficient-major over the blocks: of the same shape
      if `padded_size(n)` is n, otherwise [padded_size(n)].
    """
    padding = padded_size(bucket.size) - bucket.size
    if padding > 0:
        bucket = jnp.pad(bucket.reshape(-1), (0, padding))

    def define(key: jax.Array, bucket: jax.Array) -> jax.Array:
        return encode_blocks(key, bucket.reshape(-1)).reshape(bucket.shape)

    native = functools.partial(_call_native, ENCODE_TARGET)
    return lax.platform_dependent(key, bucket, cpu=native, default=define)


def decode(
    encoded: jax.Array, n: int, *, key: jax.Array, scale: jax.Array | float = 1.0
) -> jax.Array:
    """Undoes `encode`.

    Args:
      encoded: the result of `encode`, with 0 for each lost coefficient.
      n: entries of the bucket before `encode`.
      key: uint32 [], as given to `encode`.
      scale: float32 [], factor of the bucket; 1 / (1 - lost share) makes the estimate
        unbiased.

    Returns:
      The bucket, same dtype: of the same shape if `padded_size(n)` is n, otherwise [n].

    Raises:
      ValueError: the size of `encoded` is not that of `n` encoded entries.
    """
    if encoded.size != padded_size(n):
        raise ValueError(
            f"a bucket of n={n} entries has {padded_size(n)} coefficients, but "
            f"`encoded` has {encoded.size}; pass the n that encode() was given"
        )

    def define(key: jax.Array, scale: jax.Array, encoded: jax.Array) -> jax.Array:
        return decode_blocks(key, scale, encoded.reshape(-1)).reshape(encoded.shape)

    scale = jnp.asarray(scale, jnp.float32)
    native = functools.partial(_call_native, DECODE_TARGET)
    bucket = lax.platform_dependent(key, scale, encoded, cpu=native, default=define)
    return bucket if bucket.size == n else bucket[:n]


def encode_blocks(key: jax.Array, padded: jax.Array) -> jax.Array:
    """Defines `encode`, for [padded_size(n)].

    On a CPU `ffi/codec/hadamard.cc` computes the same result several times as fast.
    """
    return _transform(_flip(padded, key), _block_size(padded.size))


def decode_blocks(key: jax.Array, scale: jax.Array, encoded: jax.Array) -> jax.Array:
    """Defines `decode`; returns [padded_size(n)]."""
    # The Sylvester matrix is symmetric, so the transform is its own inverse. The scale
    # is last: XLA fuses it with the signs.
    bucket = _flip(_transform(encoded, _block_size(encoded.size)), key)
    return bucket * scale.astype(bucket.dtype)


def _call_native(target: str, *operands: jax.Array) -> jax.Array:
    """Calls the handler, which overwrites its last operand with the result."""
    call = jax.ffi.ffi_call(
        target,
        jax.typeof(operands[-1]),
        input_output_aliases={len(operands) - 1: 0},
        vmap_method="sequential",
    )
    return call(*operands)


def _block_size(n: int) -> int:
    """Returns the entries of a block in a bucket of `n` entries: a power of two."""
    return min(BLOCK_SIZE, 1 << max(n - 1, 0).bit_length())


def _sylvester(size: int) -> np.ndarray:
    """Returns the Hadamard matrix of +1 and -1, float32 [size, size], size = 2^k."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _transform(flat: jax.Array, block: int) -> jax.Array:
    """Transforms the columns of `flat` seen as [block, blocks]; orthonormal."""
    # H_block = H_rows (x) H_columns: one product along each half of the block index.
    columns = 1 << ((block.bit_length() - 1) // 2)
    rows = block // columns
    blocks = flat.size // block
    # The scale goes with the first product, so that sums of large entries do not
    # overflow; 1/32 for a full block, which costs no rounding.
    first = jnp.asarray(_sylvester(rows) / np.sqrt(block), flat.dtype)
    # Repeated for every row: the product is then batched, which needs no transpose.
    second = jnp.asarray(_sylvester(columns), flat.dtype)
    second = jnp.broadcast_to(second, (rows, columns, columns))
    # HIGHEST, because accelerators may round the factors to bfloat16 otherwise.
    x = flat.reshape(rows, columns * blocks)
    x = jnp.matmul(first, x, precision=lax.Precision.HIGHEST)
    x = x.reshape(rows, columns, blocks)
    x = jnp.matmul(second, x, precision=lax.Precision.HIGHEST)
    return x.reshape(flat.shape)


def _flip(flat: jax.Array, key: jax.Array) -> jax.Array:
    """Changes the sign of about half of the entries, chosen by `key`."""
    # The key is mixed in twice. With one use, at the front, the signs of two keys would
    # be permutations of each other.
    mixed = lax.iota(jnp.uint32, flat.size) ^ key
    mixed = (mixed ^ (mixed >> 16)) * _MIX_1
    mixed = (mixed ^ (mixed >> 15) ^ (key * _GOLDEN)) * _MIX_2
    # The best mixed bit of a product is its highest one.
    return jnp.where((mixed >> 31) != 0, -flat, flat)
