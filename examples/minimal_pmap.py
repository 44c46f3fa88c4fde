"""Data-parallel training with jax.pmap. 1, 2, 3: the changes.

python -m jax_optireduce launch -n 4 examples/minimal_pmap.py
"""

import functools

import jax
import jax.numpy as jnp

import jax_optireduce  # 1

jax_optireduce.init()  # 2
here = jax.local_device_count()
key, wanted = jax.random.key(jax.process_index()), jnp.arange(8.0)
x = jax.random.normal(key, (here, 128, 8))
y = x @ wanted


@functools.partial(jax.pmap, axis_name="data")
def train(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """One step of gradient descent on this device's part of the data."""
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * jax_optireduce.average_gradients(gradient, "data")  # 3


w = jnp.zeros((here, 8))
for _ in range(100):
    w = train(w, x, y)
error = abs(w.addressable_data(0) - wanted).max()
print(f"pmap: the weights are off by {error:.0e}")
