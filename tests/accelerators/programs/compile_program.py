"""Compiles a program for devices that this host lacks, and prints the compiled text.

Arguments: the platform, "cuda" (8 H100, two hosts of 4) or "tpu" (two slices v5e:2x2);
and the name of a program below. Needs the plug-in of the platform, and no device.
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
# libtpu looks for the machine that it is on.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce as jo
from jax_optireduce._session import accelerators

WIDTH = 64
# The model is divided over the axis "fast".
SPECS = {"down": P(None, "fast"), "up": P("fast"), "bias": P(), "scale": P()}
SHAPES = {
    "down": (WIDTH, 2 * WIDTH),
    "up": (2 * WIDTH, WIDTH),
    "bias": (2 * WIDTH,),
    "scale": (),
}


def devices(platform: str) -> np.ndarray:
    """Returns descriptions of 8 devices, [hosts or slices, devices of each]."""
    if platform == "tpu":
        topology = topologies.get_topology_desc("v5e:2x2", "tpu", num_slices=2)
    else:
        config = Path(__file__).with_name("h100.txtpb").read_text()
        topology = topologies.get_topology_desc(
            platform=platform, topology="1x2x4", target_config=config
        )
    return np.array(topology.devices).reshape(2, 4)


def loss_of(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["down"] + params["bias"])
    return jnp.mean((x + params["scale"] * (hidden @ params["up"])) ** 2)


def train(mesh: Mesh, average: Callable[..., Any], mean: Callable[..., Any]) -> Any:
    """A step of SGD where "slow" is manual and the compiler has "fast"."""

    def step(params: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        gradients = average(gradients)
        updated = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        return updated, mean(loss)

    at = functools.partial(NamedSharding, mesh)
    of_params = jax.tree.map(at, SPECS, is_leaf=lambda x: isinstance(x, P))
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(P(), P("slow")),
        out_specs=P(),
        axis_names={"slow"},
        check_vma=False,
    )
    program = jax.jit(mapped, out_shardings=(of_params, at(P())))
    params = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=of_params[name])
        for name, shape in SHAPES.items()
    }
    x = jax.ShapeDtypeStruct((16, WIDTH), jnp.float32, sharding=at(P("slow")))
    return program.trace(params, x)


def manual(mesh: Mesh, function: Callable[..., Any], *, check_vma: bool = False) -> Any:
    """A function of [8, 16 WIDTH] where all axes are manual."""
    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=P("slow"),
        out_specs=P(),
        check_vma=check_vma,
    )
    where = NamedSharding(mesh, P("slow"))
    x = jax.ShapeDtypeStruct((8, 16 * WIDTH), jnp.float32, sharding=where)
    return jax.jit(mapped).trace(x)


def dtypes(x: Any) -> Any:
    """Sums leaves of all dtypes and of 0, 1 and 2 dimensions."""
    leaves = {
        "float32": x,
        "bfloat16": x.astype(jnp.bfloat16),
        "float16": x[0].astype(jnp.float16),
        "int32": x[0, 0].astype(jnp.int32),
        "bool": x > 0,
        "constant": jnp.ones((3, 5)) + 0 * x[0, 0],
    }
    return jo.psum(leaves, "slow")


def lossy(x: Any, step: Any = None) -> Any:
    """An update by a gradient that a lossy call rotates."""
    weights = jnp.tanh(x)
    gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w.T) ** 2))(weights)
    mean = jo.average_gradients(gradient, "slow", mode="lossy", step=step, name="g")
    return weights - 0.1 * mean


def drain_and_resync(x: Any) -> Any:
    mean = jo.average_gradients(x, "slow", name="g")
    rest = jo.drain(mean, "slow", name="g")
    return jo.resync(mean + rest, "slow")


def two_calls(x: Any) -> Any:
    first = jo.psum(x @ x.T, "slow", name="a")
    return first, jo.psum(jnp.sin(x), "slow", name="b")


def after_one_another(x: Any) -> Any:
    """Sums a sum: the first call has statistics that nothing uses."""
    return jo.psum(2 * jo.psum(x, "slow", name="a"), "slow", name="b")


def two_steps(x: Any) -> Any:
    """Begins the calls of layers when their gradients exist, of two of them as one."""
    weights = [jnp.tanh(x.T @ x * i) for i in range(1, 4)]

    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.sum(y**2)

    *first, last = jax.grad(loss)(weights)
    handle = jo.begin(last, "slow", name="last")
    # This call has two buckets.
    others = jo.begin(first, "slow", name="first", after=handle)
    return jo.end(handle, after=others), jo.end(others)


def traced(name: str, mesh: Mesh) -> Any:
    """Returns the traced program of this name."""
    by_xla = functools.partial(jax.lax.pmean, axis_name="slow")
    ours = functools.partial(jo.average_gradients, axis_name="slow", specs=SPECS)
    rotated = functools.partial(ours, mode="lossy")
    bounded = functools.partial(jo.pmean, axis_name="slow", mode="bounded")
    programs: dict[str, Callable[[], Any]] = {
        "train_by_xla": lambda: train(mesh, by_xla, by_xla),
        "train": lambda: train(mesh, ours, by_xla),
        "train_with_loss": lambda: train(mesh, ours, bounded),
        "train_lossy": lambda: train(mesh, rotated, bounded),
        "drain_and_resync": lambda: manual(mesh, drain_and_resync),
        "manual": lambda: manual(mesh, dtypes),
        "manual_typed": lambda: manual(mesh, dtypes, check_vma=True),
        "lossy": lambda: manual(mesh, lambda x: lossy(x, x[0, 0].astype(int))),
        "lossy_counted": lambda: manual(mesh, lossy),
        "two_calls": lambda: manual(mesh, two_calls),
        "after_one_another": lambda: manual(mesh, after_one_another),
        "two_steps": lambda: manual(mesh, two_steps),
    }
    return programs[name]()


def main() -> None:
    platform, name, *flags = sys.argv[1:]
    if "unregistered" in flags:
        accelerators.register = list
    if "unchecked" in flags:
        accelerators.check = lambda *_: None
    jo.init(bucket_bytes=1 << 20)
    chosen = devices(platform)
    if "one_device" in flags:
        chosen = chosen[:1, :1]
    mesh = Mesh(chosen, ("slow", "fast"))
    try:
        lowered = traced(name, mesh).lower()
    except jo.UsageError as error:
        print(f"refused: {error}")
        return
    for plugin in accelerators.register():
        print(f"plugin: {plugin.platform} {plugin.version} {plugin.refusal}")
    try:
        print(lowered.compile().as_text())
    except jax.errors.JaxRuntimeError as error:
        print(f"failed: {error}")


if __name__ == "__main__":
    main()
