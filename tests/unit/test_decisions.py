"""Decisions on values that may differ between ranks are errors of the compilation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import PartitionSpec

import jax_optireduce

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec


def _mapped(function: Callable[..., Any], *, vma: bool = False) -> Any:
    mesh = mesh_of((4, 2), ("dp", "tp"))
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=_P(), out_specs=_P(), check_vma=vma
    )
    return jax.jit(mapped)


def _compile(function: Callable[..., Any]) -> None:
    _mapped(function).lower(jnp.ones(4))


def _rejects(function: Callable[..., Any], match: str) -> None:
    with pytest.raises(jax_optireduce.UsageError, match=match):
        _compile(function)


def _mean(x: Any, mode: str) -> Any:
    return jax_optireduce.pmean(x, "dp", mode=mode, name="loss")


def _until(mode: str, agreed: Callable[[Any], Any] = lambda stop: stop) -> Any:
    """Returns a program that trains until its loss is small."""

    def turn(carry: Any) -> Any:
        params, _ = carry
        params = 0.5 * params
        return params, agreed(_mean((params**2).sum(), mode))

    def program(params: Any) -> Any:
        return lax.while_loop(lambda c: c[1] > 0.1, turn, (params, jnp.float32(1)))

    return program


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_the_end_of_a_loop_on_a_value_that_may_differ_is_refused(mode):
    _rejects(
        _until(mode),
        f"condition of a while_loop depends on .*'loss' in mode '{mode}'.*"
        "a rank calls 'loss'.*write mode='agreed' or mode='exact'",
    )


@pytest.mark.parametrize("mode", ["exact", "agreed"])
def test_the_end_of_a_loop_on_a_value_that_all_ranks_share_is_valid(mode):
    _compile(_until(mode))


def _by_ours(x: Any) -> Any:
    return jax_optireduce.psum(x, "dp", mode="agreed", name="stop")


@pytest.mark.parametrize("agreed", [_by_ours, lambda x: lax.pmax(x, "dp")])
def test_a_decision_that_the_ranks_make_by_one_collective_is_valid(agreed):
    _compile(_until("bounded", agreed))


def test_a_collective_over_another_axis_makes_no_decision_equal():
    _rejects(_until("bounded", lambda x: lax.pmax(x, "tp")), "while_loop")


def test_the_loop_with_the_remedy_ends_as_with_jax():
    def plain(params: Any) -> Any:
        def turn(carry: Any) -> Any:
            params = 0.5 * carry[0]
            return params, lax.pmean((params**2).sum(), "dp")

        return lax.while_loop(lambda c: c[1] > 0.1, turn, (params, jnp.float32(1)))

    ours = _mapped(_until("agreed"))(jnp.ones(4))
    expected = _mapped(plain)(jnp.ones(4))
    jax.tree.map(lambda a, b: (a == b).all() or pytest.fail(f"{a} {b}"), ours, expected)


def test_a_step_that_is_skipped_by_a_value_that_may_differ_is_refused():
    def program(params: Any) -> Any:
        loss = _mean(params.sum(), "bounded")

        def step(x: Any) -> Any:
            return jax_optireduce.average_gradients(x, "dp", name="g")

        return lax.cond(loss < 3, step, lambda x: x, params)

    _rejects(program, "condition of a cond depends on .*'loss'.*a rank calls 'g'")


def test_the_collectives_of_jax_are_calls_too():
    def program(params: Any) -> Any:
        loss = _mean(params.sum(), "bounded")
        return lax.cond(loss < 3, lambda x: lax.psum(x, "dp"), lambda x: x, params)

    _rejects(program, "a rank calls 'psum")


def test_a_choice_without_calls_is_that_of_each_rank():
    def program(params: Any) -> Any:
        loss = _mean(params.sum(), "bounded")
        params = lax.cond(loss < 3, lambda x: x * 2, lambda x: x, params)
        return lax.while_loop(lambda x: x.sum() < loss, lambda x: x + 1, params)

    _compile(program)


def test_a_value_is_followed_through_jit_scan_and_gradients():
    @jax.jit
    def update(params: Any) -> Any:
        gradient = jax.grad(lambda p: (p**2).sum())(params)
        return params - jax_optireduce.average_gradients(gradient, "dp", name="g")

    def turn(carry: Any) -> Any:
        params, _ = carry
        params, norms = lax.scan(
            lambda p, _: (update(p), jnp.linalg.norm(p)), params, length=3
        )
        return params, norms[-1]

    def program(params: Any) -> Any:
        return lax.while_loop(lambda c: c[1] > 0.1, turn, (params, jnp.float32(1)))

    _rejects(program, "depends on the result of 'g'")


def test_the_nearest_call_is_named():
    def turn(carry: Any) -> Any:
        params, _ = carry
        params = jax_optireduce.average_gradients(params, "dp", name="g")
        return params, _mean(params.sum(), "bounded")

    def program(params: Any) -> Any:
        return lax.while_loop(lambda c: c[1] > 0.1, turn, (params, jnp.float32(1)))

    _rejects(program, "depends on the result of 'loss'")


def test_a_loop_around_regions_of_plain_jit_is_followed():
    mesh = mesh_of((4, 2), ("dp", "tp"))
    loss_and_grad = jax_optireduce.value_and_grad(
        lambda p, x: ((p - x) ** 2).mean(), "dp", mesh=mesh, name="g"
    )

    def turn(carry: Any) -> Any:
        params, _ = carry
        loss, gradient = loss_and_grad(params, jnp.ones((8, 4)))
        return params - gradient, loss

    def program(params: Any) -> Any:
        return lax.while_loop(lambda c: c[1] > 0.1, turn, (params, jnp.float32(1)))

    with pytest.raises(jax_optireduce.UsageError, match="of 'g value'"):
        jax.jit(program).lower(jnp.ones(4))


def test_the_end_of_an_overlapped_loop_is_followed():
    def turn(carry: Any) -> Any:
        params, handle, _ = carry
        mean = jax_optireduce.end(handle)
        handle = jax_optireduce.begin(params, "dp", name="g", mode="bounded")
        return params - mean, handle, mean.sum()

    def program(params: Any) -> Any:
        handle = jax_optireduce.begin(params, "dp", name="g", mode="bounded")
        start = (params, handle, jnp.float32(1))
        return lax.while_loop(lambda c: c[2] > 0.1, turn, start)[0]

    _rejects(program, "depends on the result of 'g'")


def test_a_loop_of_a_fixed_number_of_steps_is_valid():
    def program(params: Any) -> Any:
        return lax.fori_loop(0, 5, lambda _, p: p - _mean(p, "bounded"), params)

    _compile(program)
