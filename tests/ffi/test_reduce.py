"""Sums of contributions: the same bits as adding in rank order, one by one."""

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float64": np.dtype(np.float64),
    "int32": np.dtype(np.int32),
}
COMPLEX = {
    "complex64": np.dtype(np.float32),
    "complex128": np.dtype(np.float64),
}
FLOATS = [name for name in DTYPES if name != "int32"]
HALVES = ["bfloat16", "float16"]


def random_bits(seed: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bit pattern: NaN, infinities and subnormal numbers occur often."""
    size = int(np.prod(shape)) * DTYPES[dtype].itemsize
    return np.frombuffer(
        np.random.default_rng(seed).bytes(size), DTYPES[dtype]
    ).reshape(shape)


def added_one_by_one(contributions: np.ndarray, scale: float) -> np.ndarray:
    dtype = contributions.dtype
    wide = np.float32 if dtype.itemsize == 2 else dtype
    with np.errstate(all="ignore"):
        total = contributions[0].astype(wide)
        for contribution in contributions[1:]:
            total = total + contribution.astype(wide)
        if dtype != np.int32:
            total = total * np.asarray(scale, wide)
        return total.astype(dtype)


def summed(contributions: np.ndarray, **options: float) -> np.ndarray:
    name = next(name for name, dtype in DTYPES.items() if dtype == contributions.dtype)
    parts = [contribution.tobytes() for contribution in contributions]
    result = native.sum_contributions(name, parts, **options)
    return np.frombuffer(result, contributions.dtype)


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit by bit; a NaN need only be a NaN (its payload is the processor's)."""
    with np.errstate(invalid="ignore"):
        nan = np.isnan(expected.astype(np.float64))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), nan)
    bits = f"u{got.dtype.itemsize}"
    np.testing.assert_array_equal(got[~nan].view(bits), expected[~nan].view(bits))


@hypothesis.settings(max_examples=200)
@hypothesis.given(
    dtype=st.sampled_from(list(DTYPES)),
    ranks=st.integers(1, 40),
    elements=st.integers(0, 200) | st.integers(1000, 2100),
    seed=st.integers(0, 2**32 - 1),
    misalignment=st.integers(0, 9),
    scale=st.sampled_from([1.0, 4 / 3, 0.1, 64 / 63]),
    data=st.data(),
)
def test_sum_has_the_bits_of_adding_in_rank_order(
    dtype, ranks, elements, seed, misalignment, scale, data
):
    contributions = random_bits(seed, dtype, (ranks, elements))
    scale = 1.0 if dtype == "int32" else scale
    in_place = data.draw(st.integers(-1, ranks - 1), label="in_place")
    got = summed(
        contributions, scale=scale, misalignment=misalignment, in_place=in_place
    )
    assert_same_bits(got, added_one_by_one(contributions, scale))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ranks", [2, 4, 8, 9, 16])
def test_sum_of_ordinary_numbers_has_the_bits_of_adding_in_rank_order(dtype, ranks):
    contributions = np.random.default_rng(ranks).standard_normal((ranks, 50_000))
    contributions = contributions.astype(DTYPES[dtype])
    assert_same_bits(summed(contributions), added_one_by_one(contributions, 1.0))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_16_bit_number_comes_through_unchanged(dtype):
    every = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype])[None]
    assert_same_bits(summed(every), every[0])


@pytest.mark.parametrize("dtype", HALVES)
def test_16_bit_sums_round_once_to_nearest_even(dtype):
    # The sum of a number and half of its last place lies between two numbers.
    every = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype])
    every = every[np.isfinite(every.astype(np.float32))]
    above = np.nextafter(every.astype(np.float32), np.inf).astype(np.float32)
    bits = every.view(np.uint16).astype(np.int32)
    neighbour = np.minimum(bits + 1, 2**16 - 1).astype(np.uint16).view(DTYPES[dtype])
    for other in (above, neighbour):
        pair = np.stack([every, other.astype(DTYPES[dtype])])
        for scale in (0.5, 0.25, 1.0, 2.0**-12, 2.0**-20):
            got = summed(pair, scale=scale)
            assert_same_bits(got, added_one_by_one(pair, scale))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ranks", [1, 3, 12])
def test_a_nan_stays_a_nan_and_an_infinity_an_infinity(dtype, ranks):
    contributions = np.zeros((ranks, 70), DTYPES[dtype])
    contributions[ranks - 1, 3] = np.nan
    contributions[0, 5] = np.inf
    contributions[0, 69] = -np.inf
    got = summed(contributions).astype(np.float64)
    assert np.isnan(got[3])
    assert got[5] == np.inf
    assert got[69] == -np.inf
    assert np.count_nonzero(got) == 3


def test_a_nan_whose_payload_would_round_to_an_infinity_stays_a_nan():
    bits = np.array([0x7F80_0001, 0x7FFF_FFFF, 0xFF80_0001], np.uint32)
    for dtype in HALVES:
        wide = bits.view(np.float32)
        with np.errstate(invalid="ignore"):
            narrow = wide.astype(DTYPES[dtype])
        got = summed(np.stack([narrow, np.zeros_like(narrow)]))
        assert np.isnan(got.astype(np.float32)).all()


def test_integers_wrap_around():
    contributions = np.array([[2**31 - 1, -(2**31)], [1, -1]], np.int32)
    assert summed(contributions).tolist() == [-(2**31), 2**31 - 1]


def test_scaling_integers_is_refused():
    with pytest.raises(RuntimeError, match="scale == 1"):
        summed(np.ones((2, 4), np.int32), scale=2.0)


@hypothesis.given(
    dtype=st.sampled_from(list(COMPLEX)),
    ranks=st.integers(1, 12),
    elements=st.integers(1, 2100),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_parts_of_complex_numbers_are_added_like_two_numbers(
    dtype, ranks, elements, seed
):
    name = str(COMPLEX[dtype])
    parts = random_bits(seed, name, (ranks, 2 * elements))
    contributions = [part.tobytes() for part in parts]
    got = np.frombuffer(native.sum_contributions(dtype, contributions), COMPLEX[dtype])
    assert_same_bits(got, summed(parts))
