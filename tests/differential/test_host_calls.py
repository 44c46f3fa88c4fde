"""Host computations equal `jax.lax`, under JAX's transformations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax.sharding import PartitionSpec

import jax_optireduce

_P = PartitionSpec


@pytest.fixture(autouse=True)
def _on_host(monkeypatch):
    monkeypatch.setenv("JAX_OPTIREDUCE_HOST_CALL", "host_computation")
    with jax_optireduce.init():
        yield


def _mesh(fast=1):
    return mesh_of((2, fast), ("slow", "fast"))


def _equal(function, *, fast=1, partly=False, tolerance=0.0, check_vma=False):
    """Compares a function of (a psum, x) with our psum and with that of lax."""
    x = {"a": jnp.arange(24.0).reshape(4, 6), "b": jnp.arange(4.0)}
    results = []
    for psum in (jax_optireduce.psum, jax.lax.psum):
        mapped = jax.shard_map(
            functools.partial(function, psum),
            mesh=_mesh(fast),
            in_specs=_P("slow"),
            out_specs=_P(),
            axis_names={"slow"} if partly else {"slow", "fast"},
            check_vma=check_vma,
        )
        results.append(jax.jit(mapped)(x))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=tolerance), *results
    )


@pytest.mark.parametrize("partly", [True, False])
@pytest.mark.parametrize("fast", [1, 2])
def test_sums(fast, partly):
    # An automatic axis of one device is manual for XLA, not for JAX.
    _equal(lambda psum, x: psum(x, "slow"), fast=fast, partly=partly)


def test_sums_with_types():
    _equal(lambda psum, x: psum(x, "slow"), check_vma=True)


def test_gradients():
    def function(psum, x):
        return jax.grad(lambda y: (psum(y, "slow")["a"] ** 2).sum())(x)

    # Under check_vma=False the result varies over the axis.
    _equal(lambda psum, x: jax.lax.psum(function(psum, x), "slow"), tolerance=1e-6)


def test_loops_branches_and_checkpoints():
    def function(psum, x):
        def body(carry, _):
            total = jax.checkpoint(lambda y: psum(jnp.sin(y), "slow"))(carry)
            return total / 2, total.sum()

        carry, sums = jax.lax.scan(body, x["a"], None, length=3)
        branch = jax.lax.cond(sums[0] > -1e9, lambda y: psum(y, "slow"), jnp.sin, carry)
        return branch, sums

    _equal(function, tolerance=1e-6)


def test_named_vmap_beside_a_mesh():
    def function(psum, x):
        return jax.vmap(lambda row: psum(row, ("slow", "v")), axis_name="v")(x["a"])[0]

    _equal(function)


@pytest.mark.parametrize("counted", [True, False])
def test_lossy_sums_of_which_nothing_is_lost(counted):
    x = jnp.linspace(-1, 1, 2 * 5000, dtype=jnp.float32).reshape(2, 5000)

    def both(x):
        step = None if counted else (x[0, 0] * 0).astype(jnp.int32)
        ours = jax_optireduce.psum(x, "slow", mode="lossy", step=step)
        return ours, jax.lax.psum(x, "slow")

    mapped = jax.shard_map(
        both, mesh=_mesh(), in_specs=_P("slow"), out_specs=_P(), check_vma=False
    )
    # A given step is used once.
    for _ in range(3 if counted else 1):
        ours, theirs = jax.jit(mapped)(x)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded", "lossy"])
def test_drains_without_late_data_are_zeros(mode):
    def program(function):
        return jax.jit(
            jax.shard_map(
                lambda x: function(x[0], "slow", mode=mode, name="drained"),
                mesh=_mesh(),
                in_specs=_P("slow"),
                out_specs=_P(),
                check_vma=False,
            )
        )

    x = jnp.ones((2, 100_000), jnp.float32)
    call, drain = program(jax_optireduce.psum), program(jax_optireduce.drain)
    for _ in range(4):
        # Its memory is free for that of the drain.
        np.asarray(call(x))
        np.testing.assert_array_equal(drain(x), np.zeros(100_000))


def test_an_error_of_a_call_is_that_of_the_program():
    def again(x):
        return jax_optireduce.psum(x, "slow", step=3, name="again")

    mapped = jax.shard_map(
        again, mesh=_mesh(), in_specs=_P("slow"), out_specs=_P(), check_vma=False
    )
    program = jax.jit(mapped)
    x = jnp.ones((2, 3))
    np.testing.assert_array_equal(program(x), [[2, 2, 2]])
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="again"):
        jax.block_until_ready(program(x))
