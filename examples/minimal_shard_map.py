"""Data-parallel training with jax.shard_map. 1, 2, 3: the changes.

python -m jax_optireduce launch -n 4 examples/minimal_shard_map.py
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce  # 1

jax_optireduce.init()  # 2
mesh = jax.make_mesh((jax.device_count(),), ("data",))
sharding = NamedSharding(mesh, P("data"))
key, wanted = jax.random.key(0), jnp.arange(8.0)
x = jax.jit(lambda: jax.random.normal(key, (512, 8)), out_shardings=sharding)()
y = jax.jit(lambda x: x @ wanted)(x)


def step(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """With check_vma=False the mean is in the place of lax.pmean."""
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * jax_optireduce.average_gradients(gradient, "data")  # 3


def step_vma(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """With check_vma=True, JAX's default, the mean is in the backward pass."""
    sync = jax_optireduce.sync_in_backward  # 3
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ sync(w, "data") - y) ** 2))(w)


specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P()}
for body, vma in ((step, False), (step_vma, True)):
    train = jax.jit(jax.shard_map(body, mesh=mesh, check_vma=vma, **specs))
    w = jnp.zeros(8)
    for _ in range(100):
        w = train(w, x, y)
    error = abs(w.addressable_data(0) - wanted).max()
    print(f"check_vma={vma}: the weights are off by {error:.0e}")
