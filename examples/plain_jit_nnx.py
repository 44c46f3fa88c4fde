"""A Flax NNX program in plain jit, FSDP within each process. 1 to 4: the changes.

python -m jax_optireduce launch -n 2 --devices-per-process 2 examples/plain_jit_nnx.py

Between the processes is the slow network, axis "data"; the devices of a process share
the parameters, axis "fsdp". The compiler shards everything but the mean over "data".
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce  # 1

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 32, 32, 4, 16, 16


class Block(nnx.Module):
    """A layer of a transformer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        def linear(rows: int, columns: int, *spec: str | None) -> nnx.Linear:
            initial = nnx.initializers.lecun_normal()
            kernel = nnx.with_partitioning(initial, spec)
            return nnx.Linear(rows, columns, kernel_init=kernel, rngs=rngs)

        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.qkv = linear(WIDTH, 3 * WIDTH, None, "fsdp")
        self.out = linear(WIDTH, WIDTH, "fsdp", None)
        self.up = linear(WIDTH, 4 * WIDTH, None, "fsdp")
        self.down = linear(4 * WIDTH, WIDTH, "fsdp", None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 [batch, length, width] to the same shape."""
        q, k, v = jnp.split(self.qkv(self.norms[0](x)), 3, -1)
        q, k, v = (a.reshape(*a.shape[:2], HEADS, -1) for a in (q, k, v))
        x = x + self.out(nnx.dot_product_attention(q, k, v).reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class Model(nnx.Module):
    """A transformer that names the token of half of a sequence."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps int32 [batch, length] to float32 [batch, vocabulary]."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def loss_fn(model: Model, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean loss of a batch."""
    losses = optax.softmax_cross_entropy_with_integer_labels
    return losses(model(tokens), labels).mean()


def main() -> None:
    """Trains, and prints the loss of each tenth step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--mode", default="bounded")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    jax_optireduce.init(mode=args.mode)  # 2
    mesh = jax.make_mesh(
        (jax.process_count(), jax.local_device_count()),
        ("data", "fsdp"),
        axis_types=(AxisType.Auto, AxisType.Auto),
    )
    jax.set_mesh(mesh)

    @nnx.jit
    def create() -> tuple[Model, nnx.Optimizer]:
        model = Model(nnx.Rngs(args.seed))
        optimizer = nnx.Optimizer(model, optax.sgd(0.02, momentum=0.9), wrt=nnx.Param)
        for part in (model, optimizer):
            state = nnx.state(part)
            specs = nnx.get_partition_spec(state)
            nnx.update(part, jax.lax.with_sharding_constraint(state, specs))
        return model, optimizer

    model, optimizer = create()
    specs = jax.tree.map(lambda x: x.sharding, model)

    @nnx.jit
    def train_step(model, optimizer, tokens, labels):  # noqa: ANN001, ANN202
        value_and_grad = jax_optireduce.value_and_grad(  # 3
            loss_fn, "data", batch_argnums=(1, 2), specs=specs
        )
        loss, gradients = value_and_grad(model, tokens, labels)  # 4
        optimizer.update(model, gradients)
        return loss

    rows = NamedSharding(mesh, P(("data", "fsdp")))
    draw = np.random.default_rng(args.seed)
    for step in range(args.steps):
        labels = draw.integers(0, VOCABULARY, BATCH, np.int32)
        tokens = draw.integers(0, VOCABULARY, (BATCH, LENGTH), np.int32)
        tokens = np.where(draw.random(tokens.shape) < 0.5, labels[:, None], tokens)
        batch = (
            jax.make_array_from_callback(x.shape, rows, lambda at, x=x: x[at])
            for x in (tokens, labels)
        )
        loss = train_step(model, optimizer, *batch)
        if step % 10 == 9:
            shown = float(loss)  # All ranks read it: XLA limits the steps under way.
            if jax.process_index() == 0:
                print(f"step {step + 1}: loss {shown:.5f}", flush=True)


if __name__ == "__main__":
    main()
