"""The randomised Hadamard transform: its values, and its effect."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_optireduce._program.hadamard import (
    BLOCK_SIZE,
    DECODE_TARGET,
    ENCODE_TARGET,
    decode,
    decode_blocks,
    encode,
    encode_blocks,
    padded_size,
)

_encode = jax.jit(encode)
_decode = jax.jit(decode, static_argnums=1)
_encode_by_definition = jax.jit(encode_blocks)
_decode_by_definition = jax.jit(decode_blocks)


def _normal(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def _relative(error: np.ndarray, of: np.ndarray) -> float:
    return float(np.linalg.norm(error) / max(np.linalg.norm(of), 1e-30))


def _dense(n: int, key: int) -> np.ndarray:
    """Returns the matrix of `encode`, float64 [padded_size(n), n], column by column."""
    with jax.enable_x64(True):
        rows = jax.vmap(lambda row: encode(row, key=jnp.uint32(key)))
        return np.asarray(rows(jnp.eye(n, dtype=jnp.float64))).T


@pytest.mark.parametrize(
    ("n", "size"),
    [
        *((0, 0), (1, 1), (2, 2), (3, 4), (360, 512), (1000, 1024), (1024, 1024)),
        *((1025, 2048), (5000, 5120), (1 << 20, 1 << 20)),
    ],
)
def test_padding_is_one_small_block_or_whole_large_ones(n: int, size: int) -> None:
    assert padded_size(n) == size
    assert encode(jnp.zeros(n), key=jnp.uint32(1)).shape == (size,)


@hypothesis.given(n=st.integers(1, 5000), key=st.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=25)
def test_round_trip_keeps_values_and_energy(n: int, key: int) -> None:
    x = _normal(n, seed=n)
    encoded = encode(jnp.asarray(x), key=jnp.uint32(key))
    back = np.asarray(decode(encoded, n, key=jnp.uint32(key)))
    assert _relative(back - x, x) <= 1e-6
    assert np.linalg.norm(encoded) == pytest.approx(np.linalg.norm(x), rel=1e-6)


@hypothesis.given(
    # Few, since each is compiled: shorter than a block, one, several, not a whole
    # number.
    n=st.sampled_from([1, 16, 512, 1024, 3000, 70_000]),
    key=st.integers(0, 2**32 - 1),
    scale=st.floats(0.5, 100, width=32),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
@hypothesis.settings(max_examples=25)
def test_the_native_transform_is_the_one_of_the_definition(
    n: int, key: int, scale: float, dtype: str, seed: int
) -> None:
    key, scale = jnp.uint32(key), jnp.float32(scale)
    x = np.random.default_rng(seed).standard_normal(padded_size(n)).astype(dtype)
    # Sums of 1,024 entries, added in another order: ten roundings in each direction.
    tolerance = 10 * np.finfo(dtype).eps
    with jax.enable_x64(True):
        defined = np.asarray(_encode_by_definition(key, x))
        encoded = np.asarray(_encode(x, key=key))
        assert encoded.dtype == dtype
        assert _relative(encoded - defined, defined) <= tolerance
        defined = np.asarray(_decode_by_definition(key, scale, x))
        decoded = np.asarray(_decode(x, x.size, key=key, scale=scale))
        assert decoded.dtype == dtype
        assert _relative(decoded - defined, defined) <= tolerance


def test_sums_without_rounding_have_the_bits_of_the_definition() -> None:
    x = np.random.default_rng(1).integers(-64, 65, 3 * 1024).astype(np.float32)
    key = jnp.uint32(0xDEADBEEF)
    encoded = np.asarray(encode(jnp.asarray(x), key=key))
    np.testing.assert_array_equal(encoded, np.asarray(encode_blocks(key, x)))
    np.testing.assert_array_equal(decode(jnp.asarray(encoded), x.size, key=key), x)


@pytest.mark.parametrize("shape", [(4096,), (1, 4096), (2, 2, 1024)])
def test_a_compiled_program_rotates_in_place_by_the_native_transform(shape) -> None:
    def both(x: jax.Array, key: jax.Array) -> jax.Array:
        return decode(encode(x, key=key) * 2, x.size, key=key)

    compiled = jax.jit(both, donate_argnums=0).lower(jnp.ones(shape), jnp.uint32(1))
    _, text = compiled.compile().as_text().split("ENTRY")
    assert text.count(f'custom_call_target="{ENCODE_TARGET}"') == 1
    assert text.count(f'custom_call_target="{DECODE_TARGET}"') == 1
    assert " dot(" not in text
    assert " copy(" not in text


@pytest.mark.parametrize("n", [1, 7, 1024, 5000])
def test_float64_stays_float64(n: int) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(1).standard_normal(n))
        encoded = encode(x, key=jnp.uint32(5))
        back = decode(encoded, n, key=jnp.uint32(5))
        assert encoded.dtype == back.dtype == jnp.float64
        assert _relative(np.asarray(back - x), np.asarray(x)) <= 1e-14


@pytest.mark.parametrize("block", [1, 2, 8, 64, 512, 1024])
def test_matches_a_dense_hadamard_matrix_times_signs(block: int) -> None:
    hadamard = np.ones((1, 1))
    while len(hadamard) < block:
        hadamard = np.kron(np.array([[1, 1], [1, -1]]), hadamard)
    matrix = _dense(block, key=77)
    signs = np.sign(matrix[0])  # the first row of a Hadamard matrix is all ones
    np.testing.assert_allclose(matrix, hadamard * signs / np.sqrt(block), atol=1e-12)


def test_blocks_are_the_columns_of_a_coefficient_major_matrix() -> None:
    n, blocks = 2500, 3
    matrix = _dense(n, key=3)
    for block in range(blocks):
        # Entry i and coefficient c belong to block i mod 3 and c mod 3.
        own = matrix[block::blocks, block::blocks]
        np.testing.assert_allclose(np.abs(own), 1 / np.sqrt(BLOCK_SIZE), atol=1e-12)
        others = np.delete(matrix[block::blocks], np.s_[block::blocks], axis=1)
        assert not others.any()


def test_ranks_may_add_what_is_encoded() -> None:
    ranks = [_normal(3000, seed) for seed in range(4)]
    key = jnp.uint32(9)
    total = sum(_encode(rank, key=key) for rank in ranks)
    back = np.asarray(_decode(total, 3000, key=key))
    assert _relative(back - sum(ranks), sum(ranks)) <= 1e-6


def test_signs_are_equal_for_equal_keys_and_fresh_for_different_ones() -> None:
    x = _normal(2048)
    first, again, other = (np.asarray(_encode(x, key=jnp.uint32(k))) for k in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    # Two encodings with unrelated signs are uncorrelated, to 1 / sqrt(2048).
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.1


@pytest.mark.parametrize("stride", [1, 1 << 16, 0x9E3779B9])
def test_signs_of_neighbours_in_place_and_in_time_are_unrelated(stride: int) -> None:
    keys, positions = 2048, 64
    ones = jnp.ones(positions)
    all_keys = jnp.arange(keys, dtype=jnp.uint32) * jnp.uint32(stride)

    @jax.vmap
    def signs(key: jax.Array) -> jax.Array:
        # Decoding with another key leaves the product of both keys' signs; that other
        # key is constant.
        return decode(encode(ones, key=key), positions, key=jnp.uint32(0))

    found = np.round(np.asarray(signs(all_keys)))
    limit = 5 / np.sqrt(keys)  # five standard deviations of a mean of fair signs
    assert np.abs(found[1:].mean(axis=0)).max() < limit
    pairs = found[1:].T @ found[1:] / keys - np.eye(positions)
    assert np.abs(pairs).max() < limit
    in_time = (found[1:-1] * found[2:]).mean(axis=0)
    assert np.abs(in_time).max() < limit


@pytest.mark.parametrize("blocks", [1, 2, 7, 100])
@pytest.mark.parametrize("start", [0, 17, 333])
def test_a_lost_run_costs_each_block_its_share(blocks: int, start: int) -> None:
    run = 360  # float32 values of one datagram on Ethernet
    block_of = np.arange(blocks * BLOCK_SIZE) % blocks
    lost = np.bincount(block_of[start : start + run], minlength=blocks)
    assert lost.max() <= -(-run // blocks) + 1
    # The transform shows it, too: an entry's energy lost is its block's share.
    n = blocks * BLOCK_SIZE
    encoded = _encode(jnp.ones(n), key=jnp.uint32(4)).at[start : start + run].set(0)
    kept = np.square(np.asarray(encoded)).reshape(BLOCK_SIZE, blocks).sum(axis=0)
    assert kept.mean() == pytest.approx(BLOCK_SIZE - run / blocks, rel=0.15)


# The share of the bucket that a deadline cuts off, always the same last entries, and
# the share of the energy that this costs without a transform.
@pytest.mark.parametrize(
    ("lost", "without"), [(0.01, 0.16), (0.05, 0.80), (0.10, 1.00)]
)
def test_a_tail_that_is_always_lost_costs_noise_and_no_bias(
    lost: float, without: float
) -> None:
    n, calls = 1 << 16, 200
    x = _normal(n)
    x[: -n // 16] = 0  # all the energy is in the entries that are lost
    received = jnp.arange(n) < n - int(lost * n)

    @jax.jit
    def estimate(key: jax.Array) -> jax.Array:
        kept = jnp.where(received, encode(jnp.asarray(x), key=key), 0)
        return decode(kept, n, key=key) / (1 - lost)

    cut = np.where(received, x, 0) - x
    one = np.asarray(estimate(jnp.uint32(0))) - x
    mean = np.zeros(n)
    for call in range(calls):
        mean += np.asarray(estimate(jnp.uint32(call))) / calls
    expected = lost / (1 - lost)  # a share of the energy: what a random loss costs
    assert _relative(cut, x) ** 2 == pytest.approx(without, abs=0.02)
    assert _relative(one, x) ** 2 == pytest.approx(expected, rel=0.1)
    assert _relative(mean - x, x) ** 2 == pytest.approx(expected / calls, rel=0.1)


def test_a_nan_stays_in_its_block() -> None:
    x = jnp.ones(4096).at[6].set(jnp.nan)
    back = np.asarray(_decode(_encode(x, key=jnp.uint32(1)), 4096, key=jnp.uint32(1)))
    spoiled = np.isnan(back)
    np.testing.assert_array_equal(spoiled, np.arange(4096) % 4 == 6 % 4)


def test_large_values_do_not_overflow() -> None:
    x = jnp.full(1024, 1e36)
    back = _decode(_encode(x, key=jnp.uint32(1)), 1024, key=jnp.uint32(1))
    np.testing.assert_allclose(back, x, rtol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
def test_works_inside_shard_map(check_vma: bool) -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("dp",))
    n = 1500
    x = _normal(n * jax.device_count())
    sharded = jax.device_put(x, NamedSharding(mesh, P("dp")))

    def body(shard: jax.Array, call: jax.Array) -> jax.Array:
        key = call.astype(jnp.uint32)
        return decode(encode(shard, key=key), n, key=key)

    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=(P("dp"), P()), out_specs=P("dp"), check_vma=check_vma
    )
    back = np.asarray(jax.jit(mapped)(sharded, jnp.int32(12)))
    assert _relative(back - x, x) <= 1e-6


def test_a_wrong_size_is_explained() -> None:
    with pytest.raises(ValueError, match="n=1025 entries has 2048 coefficients"):
        decode(jnp.zeros(1024), 1025, key=jnp.uint32(1))


def test_the_compiled_program_does_not_grow_with_the_number_of_values() -> None:
    def both(x: jax.Array, key: jax.Array) -> jax.Array:
        return decode(encode(x, key=key), x.size, key=key)

    def instructions(size: int) -> int:
        lowered = jax.jit(both).lower(jnp.zeros(size), jnp.uint32(1))
        return len(lowered.compile().as_text().splitlines())

    assert instructions(1_000_003) == instructions(1003)
