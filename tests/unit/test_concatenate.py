"""Arrays as one bucket."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_optireduce._program.concatenate import CONCATENATE_TARGET, concatenate


def _rows(rows, widths, dtype):
    generator = np.random.default_rng(0)
    return [
        jnp.asarray(generator.integers(-100, 100, (rows, n)), dtype) for n in widths
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32", "int8"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("widths", [(3,), (1, 2), (5, 0, 1024, 7), (0, 0)])
def test_rows_are_joined_as_by_jax(rows, widths, dtype):
    with jax.enable_x64(dtype == "float64"):
        parts = _rows(rows, widths, dtype)
        joined = jax.jit(concatenate)(parts)
        expected = jnp.concatenate(parts, axis=1)
    assert joined.dtype == expected.dtype
    assert (np.asarray(joined) == np.asarray(expected)).all()


def test_xla_fuses_nothing_into_the_copy():
    def gradients(x):
        return concatenate([x.sum(0)[None], x.T.reshape(1, -1)])

    compiled = jax.jit(gradients).lower(jnp.ones((32, 10))).compile().as_text()
    assert CONCATENATE_TARGET in compiled
    assert "concatenate(" not in compiled


def _call(parts, result):
    return jax.jit(lambda parts: jax.ffi.ffi_call(CONCATENATE_TARGET, result)(*parts))(
        parts
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((1, 6), "float32", "have 20 bytes, the result has 24"),
        ((1, 5), "int32", "of one dtype; array 0 is not"),
        ((5,), "float32", "of one dtype; array 0 is not"),
        ((), "float32", "of one dtype; array 0 is not"),
    ],
)
def test_a_result_that_does_not_fit_is_an_error(shape, dtype, message):
    parts = _rows(1, (3, 2), "float32")
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(_call(parts, jax.ShapeDtypeStruct(shape, dtype)))
