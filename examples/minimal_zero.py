"""Training with an optimizer that is sharded over the ranks. 1, 2, 3: the changes.

python -m jax_optireduce launch -n 4 examples/minimal_zero.py
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
data = NamedSharding(mesh, P("data"))
key, wanted = jax.random.key(0), jnp.arange(4.0 * mesh.size)
x = jax.jit(lambda: jax.random.normal(key, (512, wanted.size)), out_shardings=data)()
y = jax.jit(lambda x: x @ wanted)(x)
optimizer = optax.sgd(0.05, momentum=0.5)


def step(part: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
    """One step, in which a rank updates its part of the weights."""
    w = jax_optireduce.all_gather(part, "data", tiled=True)  # 3
    g = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w) / mesh.size
    g = jax_optireduce.psum_scatter(g, "data", tiled=True, mode="bounded")  # 3
    updates, state = optimizer.update(g, state, part)
    return optax.apply_updates(part, updates), state


part = jax.jit(lambda: jnp.zeros_like(wanted), out_shardings=data)()
state = jax.jit(optimizer.init, out_shardings=data)(part)
train = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("data"), out_specs=P("data")))
for _ in range(100):
    part, state = train(part, state, x, y)
off = max(abs(s.data - wanted[s.index]).max() for s in part.addressable_shards)
print(f"ZeRO: the weights are off by {off:.0e}")
