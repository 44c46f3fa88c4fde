"""Rounding is unbiased, idempotent, and keeps values that are not finite."""

import hypothesis
import hypothesis.extra.numpy as hnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

ROUNDED = ["bfloat16", "int8", "float4"]
# The largest number of a block, in steps, and the largest exponent of a step.
LARGEST_NUMBER = {"int8": 127, "float4": 12}
EXPONENT_MAX = {"int8": 121, "float4": 124}
BLOCK = 32
SMALLEST_NORMAL = np.finfo(np.float32).tiny

keys = st.integers(0, 2**64 - 1)
formats = st.sampled_from(ROUNDED)
# Every length around a block and several of them.
lengths = st.integers(0, 4 * BLOCK + 1)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
finite_arrays = hnp.arrays(np.float32, lengths, elements=finite)


def encode(fmt: str, values: np.ndarray, key: int = 0, **options: int) -> bytes:
    return native.encode(fmt, values.tobytes(), key, **options)


def decode(fmt: str, encoded: bytes, count: int) -> np.ndarray:
    return np.frombuffer(native.decode(fmt, encoded, count), np.float32)


def rounded(fmt: str, values: np.ndarray, key: int = 0) -> np.ndarray:
    return decode(fmt, encode(fmt, values, key), values.size)


def blocks_of(values: np.ndarray) -> np.ndarray:
    """The values in rows of one block each, the last one padded with zeros."""
    padded = np.zeros(-(-values.size // BLOCK) * BLOCK, values.dtype)
    padded[: values.size] = values
    return padded.reshape(-1, BLOCK)


def steps_of(fmt: str, values: np.ndarray) -> np.ndarray:
    """The distance between the neighbours of each value, as float64."""
    if fmt == "bfloat16":
        _, exponents = np.frexp(values.astype(float))
        return np.exp2(np.maximum(exponents - 1, -126) - 7.0)
    largest = np.abs(blocks_of(values)).max(axis=1, keepdims=True).astype(float)
    with np.errstate(divide="ignore"):
        exponents = np.ceil(np.log2(largest / LARGEST_NUMBER[fmt]))
    steps = np.exp2(np.clip(exponents, -126, EXPONENT_MAX[fmt]))
    steps = np.broadcast_to(steps, (steps.size, BLOCK)).reshape(-1)[: values.size]
    if fmt == "float4":
        # From 4 steps on the numbers are 2 apart, from 8 on 4.
        doubled = np.abs(values.astype(float)) / steps
        steps = steps * np.where(doubled >= 8, 4, np.where(doubled >= 4, 2, 1))
    return steps


@hypothesis.given(fmt=formats, count=lengths)
def test_bytes_are_a_half_about_a_quarter_and_about_an_eighth(fmt, count):
    encoded = encode(fmt, np.ones(count, np.float32))
    blocks = -(-count // BLOCK)
    expected = {
        "bfloat16": 2 * count,
        "int8": count + blocks,
        "float4": count // BLOCK * 16 + min(count % BLOCK, 16) + blocks,
    }
    assert len(encoded) == expected[fmt]


@hypothesis.given(values=finite_arrays, key=keys)
def test_float32_travels_as_it_is(values, key):
    assert encode("float32", values, key) == values.tobytes()
    assert decode("float32", values.tobytes(), values.size).tobytes() == (
        values.tobytes()
    )


@hypothesis.settings(max_examples=300)
@hypothesis.given(fmt=formats, values=finite_arrays, key=keys)
def test_error_stays_below_a_step(fmt, values, key):
    got = rounded(fmt, values, key).astype(float)
    assert np.isfinite(got).all()
    if fmt == "bfloat16":
        largest = float(ml_dtypes.finfo("bfloat16").max)
    else:
        largest = LARGEST_NUMBER[fmt] * 2.0 ** EXPONENT_MAX[fmt]
    exact = values.astype(float)
    beyond = np.abs(exact) > largest
    assert (np.abs(got - exact)[~beyond] < steps_of(fmt, values)[~beyond]).all()
    assert (np.abs(got[beyond]) == largest).all()


@hypothesis.settings(max_examples=300)
@hypothesis.given(fmt=formats, values=finite_arrays, key=keys, other_key=keys)
def test_what_was_rounded_once_never_changes_again(fmt, values, key, other_key):
    once = rounded(fmt, values, key)
    assert rounded(fmt, once, other_key).tobytes() == once.tobytes()


@hypothesis.given(fmt=formats, values=finite_arrays, key=keys, offset=st.integers(0, 7))
def test_bytes_depend_on_values_and_key_only(fmt, values, key, offset):
    assert encode(fmt, values, key) == encode(fmt, values, key, misalignment=offset)


@pytest.mark.parametrize("fmt", ROUNDED)
def test_keys_round_differently(fmt):
    values = np.random.default_rng(0).normal(size=256).astype(np.float32)
    assert encode(fmt, values, 1) != encode(fmt, values, 2)


@pytest.mark.parametrize("fmt", ROUNDED)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_rounding_is_unbiased(fmt, scale):
    # The mean of n roundings has a standard deviation of at most half a step / sqrt(n).
    # The bound is six of them, with a fixed seed: a value that passes always passes.
    n = 4096
    values = np.random.default_rng(1).normal(size=200) * scale
    values = values.astype(np.float32)
    mean = np.mean([rounded(fmt, values, key) for key in range(n)], axis=0, dtype=float)
    bound = 6 * 0.5 * steps_of(fmt, values) / np.sqrt(n)
    assert (np.abs(mean - values.astype(float)) < bound).all()


@pytest.mark.parametrize("fmt", ROUNDED)
def test_the_square_error_is_that_of_stochastic_rounding(fmt):
    values = np.random.default_rng(2).normal(size=1 << 18).astype(np.float32)
    exact, step = values.astype(float), steps_of(fmt, values)
    above = np.abs(exact) % step
    expected = (above * (step - above)).mean()
    found = np.square(rounded(fmt, values) - exact).mean()
    assert found == pytest.approx(expected, rel=0.02)
    # Source: docs/wire-formats.md.
    shares = {"bfloat16": 5.5e-6, "int8": 1.4e-4, "float4": 0.027}
    assert found / np.square(exact).mean() == pytest.approx(shares[fmt], rel=0.1)


@pytest.mark.parametrize("fmt", ROUNDED)
def test_errors_of_neighbours_are_independent(fmt):
    # The error of a sum of n values grows with the root of n only.
    values = np.full(1 << 16, 1.0 + 1 / 300, np.float32)
    error = rounded(fmt, values).astype(float) - values.astype(float)
    step = steps_of(fmt, values)[0]
    assert abs(error.sum()) < 6 * 0.5 * step * np.sqrt(values.size)
    correlation = np.corrcoef(error[1:], error[:-1])[0, 1]
    assert abs(correlation) < 6 / np.sqrt(values.size)


@pytest.mark.parametrize("fmt", ROUNDED)
def test_zeros_stay_zero_beside_anything(fmt):
    values = np.zeros(BLOCK, np.float32)
    values[3] = 1e30
    for key in range(50):
        got = rounded(fmt, values, key)
        assert not np.delete(got, 3).any()


@hypothesis.given(
    fmt=formats,
    values=hnp.arrays(np.float32, lengths, elements=st.floats(width=32)),
    key=keys,
)
def test_what_is_not_finite_stays_so_and_hides_in_no_block(fmt, values, key):
    got = rounded(fmt, values, key)
    bad = ~np.isfinite(values)
    if fmt != "bfloat16":
        whole = blocks_of(bad).any(axis=1, keepdims=True)
        whole = np.broadcast_to(whole, (whole.size, BLOCK)).reshape(-1)[: values.size]
        np.testing.assert_array_equal(np.isnan(got), whole)
    else:
        np.testing.assert_array_equal(got[bad], values[bad])
        np.testing.assert_array_equal(np.isfinite(got), ~bad)


def test_every_bfloat16_is_kept():
    every = np.arange(1 << 16, dtype=np.uint32) << 16
    values = every.view(np.float32)
    numbers = ~np.isnan(values)
    got = rounded("bfloat16", values, 7)
    np.testing.assert_array_equal(got.view(np.uint32)[numbers], every[numbers])
    assert np.isnan(got[~numbers]).all()


@hypothesis.given(
    fmt=formats, encoded=st.binary(max_size=200), count=st.integers(0, 200)
)
def test_any_bytes_are_read_as_some_values(fmt, encoded, count):
    size = len(encode(fmt, np.zeros(count, np.float32)))
    encoded = encoded[:size].ljust(size, b"\xff")
    assert decode(fmt, encoded, count).size == count


@hypothesis.given(fmt=formats, values=finite_arrays, key=keys)
def test_value_and_error_add_up(fmt, values, key):
    got = rounded(fmt, values, key)
    error, any_error = native.rounding_error(values.tobytes(), got.tobytes())
    error = np.frombuffer(error, np.float32)
    assert any_error == error.any()
    # Close enough for an exact subtraction, unless the step is 2^16 times the value or
    # more.
    total = got.astype(float) + error.astype(float)
    slack = np.abs(got).astype(float) * 2.0**-24
    assert (np.abs(total - values.astype(float)) <= slack + SMALLEST_NORMAL).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", ROUNDED)
def test_error_of_what_is_not_finite_is_zero(fmt, bad):
    values = np.full(BLOCK, 1 / 3, np.float32)
    values[5] = bad
    error, _ = native.rounding_error(values.tobytes(), rounded(fmt, values).tobytes())
    error = np.frombuffer(error, np.float32)
    assert np.isfinite(error).all()
    assert error[5] == 0
