"""Ranks that build one program in different ways train together, without any name=.

Rank 0 traces parts of the program first, and uses an additional decorator. Prints the
digest of the parameters, and that of the parameters of the same training by `jax.lax`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import meshes
import numpy as np
from jax import lax

import jax_optireduce as jo

Sum = Callable[[Any], Any]


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator used by rank 0 alone."""

    def wrapper(*arguments: Any) -> Any:
        result = function(*arguments)
        print(f"{function.__name__} was traced", flush=True)
        return result

    return wrapper


def make_step(mean: Sum, *, looks: bool) -> Callable[[Any, Any], Any]:
    """Returns a step of training; JAX caches the traces of its inner functions."""
    decorated = logged if looks else lambda function: function

    @jax.jit
    def normalized(x):
        return x - mean(x.mean(0))

    @jax.checkpoint
    @decorated
    def layer(w, x):
        return jnp.tanh(x @ w) + mean(jnp.sin(x.sum()))

    def two_layers(w, x):
        return lax.scan(lambda y, _: (layer(w, y), None), x, None, length=2)[0]

    def loss(w, x):
        return (two_layers(w, normalized(x)) ** 2).mean()

    if looks:
        w, x = jnp.ones((3, 3)), jnp.ones((4, 3))

        def look(w, x):
            return layer(w, normalized(x))

        mesh = meshes.make((jax.device_count(),), ("dp",))
        specs = {"in_specs": jax.sharding.PartitionSpec(), "check_vma": False}
        specs["out_specs"] = jax.sharding.PartitionSpec()
        shown = jax.shard_map(look, mesh=mesh, **specs)
        print(jax.make_jaxpr(shown)(w, x))
        print(jax.eval_shape(shown, w, x))
        jax.jit(shown).lower(w, x)
        jax.make_jaxpr(jax.shard_map(jax.grad(loss), mesh=mesh, **specs))(w, x)

    def step(w, x):
        return w - 0.1 * mean(jax.grad(loss)(w, x))

    return decorated(step)


with jo.init():
    mesh = meshes.make((jax.device_count(),), ("dp",))
    data = np.random.default_rng(1).normal(size=(jax.device_count(), 4, 3))
    x = meshes.spread(mesh, data.astype(np.float32))
    start = np.broadcast_to(np.eye(3, dtype=np.float32), (jax.device_count(), 3, 3))
    means = {"ours": jo.pmean, "lax": lax.pmean}
    for kind, mean in means.items():
        looks = kind == "ours" and jax.process_index() == 0
        step = make_step(functools.partial(mean, axis_name="dp"), looks=looks)
        train = meshes.mapped(mesh, step)
        w = meshes.spread(mesh, start)
        for _ in range(5):
            w = jax.block_until_ready(train(w, x))
        print(kind, meshes.digest(*meshes.rows_here(w).values()), flush=True)
