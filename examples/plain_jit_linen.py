"""A Flax Linen program in plain jit, FSDP within each process. 1 to 4: the changes.

python -m jax_optireduce launch -n 2 --devices-per-process 2 examples/plain_jit_linen.py

Between the processes is the slow network, axis "data"; the devices of a process share
the parameters, axis "fsdp". The compiler shards everything but the mean over "data".
"""

import argparse
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce  # 1

CLASSES, WIDTH, BATCH = 10, 64, 32


class Model(nn.Module):
    """A classifier of points."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 [batch, width] to float32 [batch, classes]."""
        initial = nn.initializers.lecun_normal()
        for spec in ((None, "fsdp"), ("fsdp", None)):
            x = nn.Dense(WIDTH, kernel_init=nn.with_partitioning(initial, spec))(x)
            x = nn.relu(nn.LayerNorm()(x))
        return nn.Dense(CLASSES)(x)


def main() -> None:
    """Trains, and prints the loss of each tenth step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--mode", default="bounded")
    args = parser.parse_args()

    jax_optireduce.init(mode=args.mode)  # 2
    mesh = jax.make_mesh(
        (jax.process_count(), jax.local_device_count()),
        ("data", "fsdp"),
        axis_types=(AxisType.Auto, AxisType.Auto),
    )
    model, optimizer = Model(), optax.adamw(3e-3)
    rows = NamedSharding(mesh, P(("data", "fsdp")))

    def create() -> TrainState:
        params = model.init(jax.random.key(0), np.zeros((1, WIDTH), np.float32))
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    specs = nn.get_partition_spec(jax.eval_shape(create))
    shardings = nn.get_sharding(jax.eval_shape(create), mesh)
    state = jax.jit(create, out_shardings=shardings)()

    def loss_fn(params, x, labels):  # noqa: ANN001, ANN202
        losses = optax.softmax_cross_entropy_with_integer_labels
        logits: Any = model.apply(params, x)
        return losses(logits, labels).mean()

    @jax.jit
    def train_step(state, x, labels):  # noqa: ANN001, ANN202
        value_and_grad = jax_optireduce.value_and_grad(  # 3
            loss_fn, "data", batch_argnums=(1, 2), mesh=mesh, specs=specs.params
        )
        loss, gradients = value_and_grad(state.params, x, labels)  # 4
        return state.apply_gradients(grads=gradients), loss

    draw = np.random.default_rng(0)
    centres = draw.standard_normal((CLASSES, WIDTH))
    for step in range(args.steps):
        labels = draw.integers(0, CLASSES, BATCH)
        x = centres[labels] + draw.standard_normal((BATCH, WIDTH))
        batch = (
            jax.make_array_from_callback(x.shape, rows, lambda at, x=x: x[at])
            for x in (x.astype(np.float32), labels.astype(np.int32))
        )
        state, loss = train_step(state, *batch)
        if step % 10 == 9:
            shown = float(loss)  # All ranks read it: XLA limits the steps under way.
            if jax.process_index() == 0:
                print(f"step {step + 1}: loss {shown:.5f}", flush=True)


if __name__ == "__main__":
    main()
