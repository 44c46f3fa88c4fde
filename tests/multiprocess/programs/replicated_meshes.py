"""Calls over replicas in programs of two devices, of which each replica has a mesh.

Replica 0 has the mesh 2 x 1, replica 1 the mesh 1 x 2. Prints "done" if all is right.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce as jo
from jax_optireduce import REPLICAS

communicator = jo.init()
jo.join({})
own = communicator.place
devices = np.array(jax.devices()).reshape((2, 1) if own == 0 else (1, 2))
mesh = jax.sharding.Mesh(devices, ("data", "model"))
both_axes = PartitionSpec(("data", "model"))


def values(replica):
    return np.arange(24, dtype=np.float32).reshape(4, 6) + 100 * replica


x, total = values(own), values(0) + values(1)


def manual(function, out_specs):
    mapped = jax.shard_map(function, mesh=mesh, in_specs=both_axes, out_specs=out_specs)
    return jax.jit(mapped)


def of_shards():
    summed = manual(lambda x: jo.psum(x, REPLICAS, name="of shards"), both_axes)
    np.testing.assert_array_equal(summed(x), total)


def of_all_devices():
    axes = ("data", "model", REPLICAS)
    mean = manual(lambda x: jo.pmean(x.sum(), axes, name="all"), PartitionSpec())
    np.testing.assert_allclose(mean(x), total.sum() / 4)


def of_compiler():
    def mean(tree):
        return jo.average_gradients(
            tree,
            REPLICAS,
            name="of compiler",
            specs={"x": both_axes, "y": None},
            return_stats=True,
        )

    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, NamedSharding(mesh, both_axes))
        result, report = jax.jit(mean)({"x": sharded, "y": np.float32(own)})
    np.testing.assert_array_equal(result["x"], total / 2)
    assert float(result["y"]) == 0.5
    assert float(report.live_processes) == 2
    # The copies on the devices of a replica are equal.
    copies = {np.asarray(s.data).tobytes() for s in result["y"].addressable_shards}
    assert len(copies) == 1
    with pytest.raises(jo.UsageError, match="needs their mesh"):
        jax.jit(lambda x: jo.psum(x, REPLICAS, name="no mesh"))(sharded)


def of_one_device():
    @jax.jit
    def summed(x):
        return jo.psum(x, REPLICAS, name="one device")

    np.testing.assert_array_equal(summed(x), total)
    np.testing.assert_array_equal(jo.psum(x, REPLICAS, name="eager"), total)
    np.testing.assert_array_equal(jo.psum(1, REPLICAS, name="constant"), 2)
    gradient = jax.grad(lambda x: jo.psum(x * x, REPLICAS, name="grad").sum())
    np.testing.assert_array_equal(jax.jit(gradient)(x), 4 * x)
    np.testing.assert_array_equal(jax.jit(jax.vmap(summed))(x), total)

    def thrice(x):
        def turn(carry, _):
            return jo.psum(carry, REPLICAS, name="scan"), None

        return jax.lax.scan(turn, x, None, length=3)[0]

    np.testing.assert_array_equal(jax.jit(thrice)(x), 4 * total)

    def branch(flag, x):
        return jax.lax.cond(
            flag, lambda x: jo.psum(x, REPLICAS, name="cond"), lambda x: x, x
        )

    np.testing.assert_array_equal(jax.jit(branch)(True, x), total)


def of_other_functions():
    def begun(x):
        handle = jo.begin(x, REPLICAS, name="begun", mode="bounded")
        return jo.end(handle)

    def drained(x):
        return jo.drain(x, REPLICAS, name="begun", mode="bounded")

    sums = jax.jit(begun)(x) + jax.jit(drained)(x)
    np.testing.assert_allclose(sums, total / 2)
    np.testing.assert_allclose(jax.jit(lambda x: jo.resync(x, REPLICAS))(x), total / 2)

    def loss(params):
        return (jo.sync_in_backward(params, REPLICAS, name="backward") * x).sum()

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), total / 2)
    optimizer = jo.optax_average_gradients(REPLICAS, name="optax", mode="exact")
    means, _ = jax.jit(lambda x: optimizer.update(x, optimizer.init(x)))(x)
    np.testing.assert_allclose(means, total / 2)
    for function in (jo.psum_scatter, jo.all_gather, jo.replica_drift):
        with pytest.raises(jo.UsageError, match="the number of replicas may change"):
            jax.jit(lambda x, of=function: of(x, REPLICAS))(jnp.ones(2))
    jo.assert_replicas_equal({"same": np.ones(3)})


of_shards()
of_all_devices()
of_compiler()
of_one_device()
of_other_functions()
print("done", flush=True)
