"""Data-parallel training with Optax. 1, 2, 3: the changes.

python -m jax_optireduce launch -n 4 examples/minimal_optax.py
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce  # 1

jax_optireduce.init()  # 2
mesh = jax.make_mesh((jax.device_count(),), ("data",))
sharding = NamedSharding(mesh, P("data"))
key, wanted = jax.random.key(0), jnp.arange(8.0)
x = jax.jit(lambda: jax.random.normal(key, (512, 8)), out_shardings=sharding)()
y = jax.jit(lambda x: x @ wanted)(x)
sync = jax_optireduce.optax_average_gradients("data")  # 3
optimizer = optax.chain(sync, optax.sgd(0.05, momentum=0.5))


def step(w: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
    """One step on this device's part of the data."""
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    updates, state = optimizer.update(gradient, state, w)
    return optax.apply_updates(w, updates), state


specs = {"in_specs": (P(), P(), P("data"), P("data")), "out_specs": (P(), P())}
train = jax.jit(jax.shard_map(step, mesh=mesh, check_vma=False, **specs))
w = jnp.zeros(8)
state = optimizer.init(w)
for _ in range(100):
    w, state = train(w, state, x, y)
off = abs(w.addressable_data(0) - wanted).max()
print(f"Optax: the weights are off by {off:.0e}")
