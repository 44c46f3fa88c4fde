"""Trains in regions where one axis is manual and the compiler shards the other.

Arguments: the devices of a process along the axis "fast"; "auto" or "explicit"; "all"
or "few" cases. Prints "case <name> <largest difference of a parameter to a program
without any mesh>".
"""

import contextlib
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce as jo

FAST, KIND = int(sys.argv[1]), sys.argv[2]
STEPS, RATE = 4, 0.1
WIDTH, BATCH = 8, 16

PARAMS = {
    "down": np.linspace(-1, 1, WIDTH * 2 * WIDTH, dtype=np.float32).reshape(WIDTH, -1),
    "up": np.linspace(1, -0.5, WIDTH * 2 * WIDTH, dtype=np.float32).reshape(-1, WIDTH),
    "bias": np.linspace(0, 1, 2 * WIDTH, dtype=np.float32),
    # No dimension of these can be divided.
    "odd": np.linspace(-1, 0, 3 * 5, dtype=np.float32).reshape(3, 5),
    "scale": np.float32(0.5),
}
SPECS = {
    "down": P(None, "fast"),
    "up": P("fast"),
    "bias": P(),
    "odd": P(),
    "scale": P(),
}


def loss_of(params, x, y):
    hidden = jnp.tanh(x @ params["down"] + params["bias"])
    # Explicit axes: the sum over a divided dimension needs the sharding of its result.
    explicit = jax.sharding.get_abstract_mesh().explicit_axes
    whole = P(None, None) if explicit else None
    out = jnp.matmul(hidden, params["up"], out_sharding=whole)
    out = x + params["scale"] * out
    out = out.at[:, :5].add(params["odd"].sum(0))
    return jnp.mean((out - y) ** 2)


def batches():
    draw = np.random.default_rng(0)
    for _ in range(STEPS):
        yield tuple(
            draw.standard_normal((BATCH, WIDTH)).astype(np.float32) for _ in range(2)
        )


def updated(params, gradients):
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def after(specs):
    """Reduces the gradients after the backward pass."""

    def step(params, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        gradients = jo.average_gradients(
            gradients, "slow", mode="exact", specs=specs, name="gradients"
        )
        return updated(params, gradients), jo.pmean(loss, "slow", name="loss")

    return step


def inside(specs):
    """Reduces the gradients in the backward pass."""

    def step(params, x, y):
        def loss_fn(params):
            params = jo.sync_in_backward(
                params, "slow", mode="exact", specs=specs, name="gradients"
            )
            return jax.checkpoint(loss_of)(params, x, y)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        return updated(params, gradients), jo.pmean(loss, "slow", name="loss")

    return step


def with_optax(specs):
    """Reduces the gradients as a part of the optimizer, and reports."""
    averaged = jo.optax_average_gradients(
        "slow", mode="bounded", specs=specs, name="gradients"
    )
    optimizer = optax.chain(averaged, optax.sgd(RATE))

    def step(params, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        state = optimizer.init(params)
        updates, state = optimizer.update(gradients, state, params)
        live = state[0].last.live_processes
        params = optax.apply_updates(params, updates)
        loss = jo.pmean(loss, "slow", name="loss")
        # Makes a wrong report visible.
        return params, jnp.where(live == jax.process_count(), loss, jnp.nan)

    return step


def reference():
    params = PARAMS
    for x, y in batches():
        params = updated(params, jax.grad(loss_of)(params, x, y))
    return params


def train(make_step, specs, mesh, *, check_vma, set_mesh):
    axes = {"axis_names": {"slow"}, "check_vma": check_vma}
    step = jax.jit(
        jax.shard_map(
            make_step(specs),
            in_specs=(P(), P("slow"), P("slow")),
            out_specs=(P(), P()),
            **axes,
            **({} if set_mesh else {"mesh": mesh}),
        )
    )
    place = jax.make_array_from_callback
    params = {
        name: place(
            np.shape(value), NamedSharding(mesh, SPECS[name]), lambda at, v=value: v[at]
        )
        for name, value in PARAMS.items()
    }
    rows = NamedSharding(mesh, P("slow"))
    context = jax.set_mesh(mesh) if set_mesh else contextlib.nullcontext()
    with context:
        for batch in batches():
            given = [place(b.shape, rows, lambda at, b=b: b[at]) for b in batch]
            params, loss = step(params, *given)
            assert np.isfinite(loss.addressable_data(0)), loss
    return params


# Nothing is late, on a busy machine as well.
jo.init(deadline_max_s=30.0)
types = (AxisType.Auto, AxisType.Auto if KIND == "auto" else AxisType.Explicit)
mesh = jax.make_mesh((jax.process_count(), FAST), ("slow", "fast"), axis_types=types)
expected = reference()
for make_step, specs, vma, set_mesh in itertools.product(
    (after, inside, with_optax), (SPECS, None), (False, True), (False, True)
):
    if vma and make_step is not inside:
        continue  # JAX has reduced the gradients.
    if sys.argv[3] == "few" and (specs is None or set_mesh):
        continue
    found = train(make_step, specs, mesh, check_vma=vma, set_mesh=set_mesh)
    shards = {
        name: [
            np.abs(shard.data - np.asarray(expected[name])[shard.index]).max()
            for shard in array.addressable_shards
        ]
        for name, array in found.items()
    }
    how = f"{make_step.__name__},{'specs' if specs else 'none'},{vma},{set_mesh}"
    print("case", how, max(max(found) for found in shards.values()), flush=True)
jo.shutdown()
