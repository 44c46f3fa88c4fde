"""Training with SGD: every form of integration takes the steps of `jax.lax.pmean`.

With SGD, because an optimizer that normalises its steps would hide a wrong factor.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import PartitionSpec

import jax_optireduce

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
_STEPS = 50
_RATE = 0.05


def _parameters() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "hidden": jax.random.normal(keys[0], (6, 8)) / 3,
        "out": jax.random.normal(keys[1], (8, 1)) / 3,
        "bias": jnp.zeros(()),
    }


def _loss(params: Any, x: Any, y: Any) -> Any:
    predicted = jnp.tanh(x @ params["hidden"]) @ params["out"] + params["bias"]
    return ((predicted[:, 0] - y) ** 2).mean()


def _train(gradient: Callable[..., Any], *, vma: bool) -> Any:
    """Returns the parameters after 50 steps on 4 ranks, each with its own batch."""
    mesh = mesh_of((4,), ("dp",))

    def step(params: Any, x: Any, y: Any) -> Any:
        updates = gradient(params, x, y)
        return jax.tree.map(lambda p, g: p - _RATE * g, params, updates)

    mapped = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(_P(), _P("dp"), _P("dp")),
            out_specs=_P(),
            check_vma=vma,
        )
    )
    random = np.random.default_rng(1)
    params = _parameters()
    for _ in range(_STEPS):
        x = jnp.asarray(random.normal(size=(32, 6)), jnp.float32)
        params = mapped(params, x, jnp.sin(x.sum(1)))
    return params


def _varying(params: Any) -> Any:
    return jax.tree.map(lambda p: lax.pcast(p, "dp", to="varying"), params)


def _reference(params: Any, x: Any, y: Any) -> Any:
    return lax.pmean(jax.grad(_loss)(params, x, y), "dp")


def _after_pcast(params: Any, x: Any, y: Any) -> Any:
    gradients = jax.grad(_loss)(_varying(params), x, y)
    return jax_optireduce.average_gradients(gradients, "dp")


def _untyped(params: Any, x: Any, y: Any) -> Any:
    return jax_optireduce.average_gradients(jax.grad(_loss)(params, x, y), "dp")


def _in_backward(params: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        return _loss(jax_optireduce.sync_in_backward(p, "dp"), x, y)

    return jax.grad(loss)(params)


def _with_optax(params: Any, x: Any, y: Any) -> Any:
    optimizer = optax.chain(
        jax_optireduce.optax_average_gradients("dp"), optax.scale(1.0)
    )
    gradients = jax.grad(_loss)(params, x, y)
    return optimizer.update(gradients, optimizer.init(params), params)[0]


def _with_optax_after_pcast(params: Any, x: Any, y: Any) -> Any:
    return _with_optax(_varying(params), x, y)


def _sum_instead_of_mean(params: Any, x: Any, y: Any) -> Any:
    return jax_optireduce.psum(jax.grad(_loss)(params, x, y), "dp")


@pytest.fixture(scope="module")
def expected() -> Any:
    return _train(_reference, vma=False)


def _distance(a: Any, b: Any) -> float:
    squares = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), a, b)
    return float(jnp.sqrt(sum(jax.tree.leaves(squares))))


@pytest.mark.parametrize(
    ("form", "vma"),
    [
        (_after_pcast, True),
        (_untyped, False),
        (_in_backward, True),
        (_in_backward, False),
        (_with_optax, False),
        (_with_optax_after_pcast, True),
    ],
)
def test_form_takes_the_steps_of_pmean(expected, form, vma):
    trained = _train(form, vma=vma)
    assert _distance(trained, expected) < 1e-5
    assert _distance(trained, _parameters()) > 0.1


def test_factor_of_the_world_size_would_be_noticed(expected):
    assert _distance(_train(_sum_instead_of_mean, vma=False), expected) > 0.1


def test_lossy_without_loss_takes_the_same_steps(expected):
    def form(params: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(_loss)(params, x, y)
        return jax_optireduce.average_gradients(gradients, "dp", mode="lossy")

    assert _distance(_train(form, vma=False), expected) < 1e-4


@pytest.mark.parametrize("vma", [True, False])
def test_safeguards_without_loss_take_the_same_steps(expected, vma):
    def form(params: Any, x: Any, y: Any) -> Any:
        link = jax_optireduce.optax_average_gradients(
            "dp", mode="lossy", hadamard="auto", skip_above=0.1
        )
        params = _varying(params) if vma else params
        return link.update(jax.grad(_loss)(params, x, y), link.init(params))[0]

    assert _distance(_train(form, vma=vma), expected) < 1e-4


@pytest.mark.parametrize("vma", [True, False])
def test_safeguards_decide_on_the_whole_mesh_and_follow_their_state(vma):
    link = jax_optireduce.optax_average_gradients(
        "dp", mode="lossy", name="guarded", hadamard="auto", skip_above=0.1
    )
    mesh = mesh_of((4, 2), ("dp", "tp"))
    step = jax.shard_map(
        link.update,
        mesh=mesh,
        in_specs=(_P(("dp", "tp")), _P()),
        out_specs=(_P("tp"), _P()),
        check_vma=vma,
    )
    state = link.init(None)
    guards = state.safeguards._replace(
        hadamard=jnp.asarray(True),
        quiet_calls=jnp.int32(98),
        skipped=jnp.asarray(True),
        skips_in_a_row=jnp.int32(7),
        skips=jnp.int32(9),
    )
    state = state._replace(safeguards=guards)
    for hadamard, quiet_calls in ((True, 99), (False, 100), (False, 101)):
        means, state = jax.jit(step)(jnp.arange(8.0), state)
        np.testing.assert_allclose(means, [3.0, 4.0], rtol=1e-5)
        guards = state.safeguards
        assert (bool(guards.hadamard), int(guards.quiet_calls)) == (
            hadamard,
            quiet_calls,
        )
        assert (bool(guards.skipped), int(guards.skips_in_a_row)) == (False, 0)
        assert int(guards.skips) == 9


def test_state_of_the_optax_link_counts_and_reports_its_calls():
    link = jax_optireduce.optax_average_gradients("dp")
    # On a mesh with a second axis, over which the reports vary, too.
    mesh = mesh_of((4, 2), ("dp", "tp"))

    def steps(gradient: Any, state: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            means, state = link.update(gradient, state)
            return state, means

        return lax.scan(step, state, length=3)

    mapped = jax.shard_map(
        steps,
        mesh=mesh,
        in_specs=(_P("dp"), _P()),
        out_specs=(_P(), _P()),
    )
    program = jax.jit(mapped, donate_argnums=1)
    state = link.init(None)
    assert float(state.last.slowest_process) == -1
    for calls in (3, 6):
        state, means = program(jnp.arange(8.0), state)
        np.testing.assert_array_equal(means, [[3.0, 4.0]] * 3)
        assert (int(state.calls), int(state.last.sequence)) == (calls, calls - 1)
    assert state.missing_contributions == state.deferred == 0
    assert 0 < state.elapsed_s <= state.largest_elapsed_s


def test_sync_in_backward_leaves_values_and_integers_alone():
    mesh = mesh_of((4,), ("dp",))
    params = {"w": jnp.arange(3.0), "count": jnp.int32(5)}

    def local(p: Any, x: Any, step: Any) -> Any:
        def loss(w: Any) -> Any:
            synced = jax_optireduce.sync_in_backward({**p, "w": w}, "dp", step=step)
            return (synced["w"] * x).sum() * synced["count"]

        value = jax_optireduce.sync_in_backward(p, "dp")
        return lax.pmean(value["w"], "dp"), jax.grad(loss)(p["w"])

    for number, vma in enumerate((True, False)):
        mapped = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(_P(), _P("dp"), _P()),
            out_specs=_P(),
            check_vma=vma,
        )
        value, gradient = jax.jit(mapped)(params, jnp.arange(4.0), jnp.int32(number))
        np.testing.assert_array_equal(value, params["w"])
        np.testing.assert_array_equal(gradient, jnp.full(3, 5 * 1.5))
