"""Gradients of losses that hold collectives, for both values of check_vma.

With SGD, because an optimizer that normalises its steps would hide a wrong factor.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import PartitionSpec

import jax_optireduce

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
_RANKS = 4
_STEPS = 10
_RATE = 0.1


def _alone(x: Any) -> Any:
    """Stands for a collective where one device has the whole batch."""
    return x


def _contrastive(params: Any, x: Any, gather: Any, mean: Any) -> Any:
    """The pairs of all ranks are the negatives of each one; one loss for all."""
    left, right = jnp.tanh(x @ params["left"]), jnp.tanh(x @ params["right"])
    all_right = gather(right)
    scores = left @ all_right.T
    own = (left * right).sum(1)
    return mean((jax.nn.logsumexp(scores, axis=1) - own).mean())


def _normalized(params: Any, x: Any, mean: Any) -> Any:
    hidden = x @ params["left"]
    center = mean(hidden.mean(0))
    spread = mean(((hidden - center) ** 2).mean(0))
    normal = (hidden - center) / jnp.sqrt(spread + 0.1)
    return ((jnp.tanh(normal) @ params["right"].T - x) ** 2).mean()


def _norm_and_global_loss(params: Any, x: Any, gather: Any, mean: Any) -> Any:
    del gather
    return mean(_normalized(params, x, mean))


def _norm_and_own_loss(params: Any, x: Any, gather: Any, mean: Any) -> Any:
    del gather
    return _normalized(params, x, mean)


_LOSSES = [
    pytest.param(_contrastive, True, id="contrastive"),
    pytest.param(_norm_and_global_loss, True, id="global batch norm, global loss"),
    pytest.param(_norm_and_own_loss, False, id="global batch norm, own loss"),
]


def _parameters() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "left": jax.random.normal(keys[0], (6, 5)),
        "right": jax.random.normal(keys[1], (6, 5)),
    }


def _batches() -> list[jax.Array]:
    random = np.random.default_rng(1)
    return [
        jnp.asarray(random.normal(size=(16, 6)), jnp.float32) for _ in range(_STEPS)
    ]


def _descend(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - _RATE * g, params, gradients)


def _trained_alone(loss: Any) -> Any:
    """Returns the parameters after plain JAX on one device."""
    step = jax.jit(
        lambda params, x: _descend(params, jax.grad(loss)(params, x, _alone, _alone))
    )
    params = _parameters()
    for x in _batches():
        params = step(params, x)
    return params


def _trained(gradient: Callable[[Any, Any], Any], *, vma: bool) -> Any:
    mesh = mesh_of((_RANKS,), ("dp",))
    step = jax.jit(
        jax.shard_map(
            lambda params, x: _descend(params, gradient(params, x)),
            mesh=mesh,
            in_specs=(_P(), _P("dp")),
            out_specs=_P(),
            check_vma=vma,
        )
    )
    params = _parameters()
    for x in _batches():
        params = step(params, x)
    return params


def _on_ranks(loss: Any) -> Callable[[Any, Any], Any]:
    def gather(x: Any) -> Any:
        return lax.all_gather(x, "dp", tiled=True)

    def mean(x: Any) -> Any:
        return lax.pmean(x, "dp")

    return lambda params, x: loss(params, x, gather, mean)


def _distance(a: Any, b: Any) -> float:
    squares = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), a, b)
    return float(jnp.sqrt(sum(jax.tree.leaves(squares))))


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize(("loss", "is_global"), _LOSSES)
def test_sync_in_backward_takes_the_steps_of_one_device(loss, is_global, vma):
    on_ranks = _on_ranks(loss)

    def gradient(params: Any, x: Any) -> Any:
        def synced(params: Any) -> Any:
            params = jax_optireduce.sync_in_backward(
                params, "dp", global_loss=is_global
            )
            return on_ranks(params, x)

        return jax.grad(synced)(params)

    trained = _trained(gradient, vma=vma)
    assert _distance(trained, _trained_alone(loss)) < 1e-4
    assert _distance(trained, _parameters()) > 0.1


@pytest.mark.parametrize(("loss", "is_global"), _LOSSES)
def test_average_gradients_takes_the_steps_of_one_device(loss, is_global):
    del is_global  # It makes no difference without check_vma.
    on_ranks = _on_ranks(loss)

    def gradient(params: Any, x: Any) -> Any:
        return jax_optireduce.average_gradients(jax.grad(on_ranks)(params, x), "dp")

    trained = _trained(gradient, vma=False)
    assert _distance(trained, _trained_alone(loss)) < 1e-4


@pytest.mark.parametrize("loss", [_contrastive, _norm_and_global_loss])
def test_the_factor_is_that_of_jax_itself(loss):
    trained = _trained(jax.grad(_on_ranks(loss)), vma=True)
    assert _distance(trained, _trained_alone(loss)) < 1e-4
