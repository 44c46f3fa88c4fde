"""Calls in two steps, in several processes, in the way given as first argument.

"train MODE WIRE_FORMAT COUPLING": 50 steps of SGD with gradients of the step before,
and a drain; every rank prints the distance to the same steps with `lax.pmean`. The
gradients depend on the parameters by the factor COUPLING. "exit": begins a call, which
the other rank begins later, and ends without waiting. "dead": rank 1 is killed, then
rank 0 begins a call. "cancel", "disagree": the error of a call is that of its end, and
has a type.
"""

import os
import signal
import sys
import time

import events
import jax
import jax.numpy as jnp
import meshes
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce as jo
from jax_optireduce._jax import coordination

HOW = sys.argv[1]
P = PartitionSpec

communicator = jo.init()
rank, devices = jax.process_index(), jax.device_count()
mesh = meshes.make((devices,), ("dp",))


def mapped(function, in_specs, out_specs, **how):
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    return jax.jit(mapped, **how)


def rows(seed):
    random = np.random.default_rng(seed)
    return meshes.spread(mesh, random.normal(size=(devices, 3000)).astype(np.float32))


def begin_program(name="call", **arguments):
    return mapped(lambda x: jo.begin(x, "dp", name=name, **arguments), P("dp"), P())


end_program = mapped(jo.end, P(), P())


def train(mode, wire_format, coupling):
    """Trains a quadratic, whose gradients differ between ranks."""
    steps, rate = 50, 0.05

    def gradient(params, x):
        return float(coupling) * params - 3 * x.reshape(params.shape)

    def step(params, handle, x):
        arguments = {"mode": mode, "wire_format": wire_format, "name": "gradients"}
        following = jo.begin(gradient(params, x), "dp", **arguments)
        means = jo.end(handle, after=following)
        return params - rate * means, following

    def reference(params, means, x):
        following = lax.pmean(gradient(params, x), "dp")
        return params - rate * means, following

    def rest(params, handle):
        """Applies the result of the last call, and of a drain."""
        means = jo.end(handle)
        if mode in ("agreed", "bounded"):
            means += jo.drain(
                means, "dp", name="gradients", mode=mode, wire_format=wire_format
            )
        return params - rate * means

    everywhere = NamedSharding(mesh, P())
    zeros = jax.make_array_from_callback(
        (30, 100), everywhere, lambda at: np.zeros((30, 100), np.float32)[at]
    )
    ours = mapped(step, (P(), P(), P("dp")), P())
    theirs = mapped(reference, (P(), P(), P("dp")), P())
    params, handle = zeros, jo.empty_handle(zeros, "dp", mode=mode)
    wanted, means = zeros, zeros
    for number in range(steps):
        x = rows(number)
        params, handle = ours(params, handle, x)
        wanted, means = jax.block_until_ready(theirs(wanted, means, x))
    end = jax.block_until_ready(mapped(rest, P(), P())(params, handle))
    distance = mapped(lambda x, y: jnp.abs(x - y).max(), P(), P())(
        end, wanted - rate * means
    )
    print("distance", f"{float(distance.addressable_data(0)):.6f}", flush=True)
    counters = jo.stats()
    print("late", counters["stages_expired"], flush=True)
    print("failed", counters["calls_failed"], counters["handles_open"], flush=True)


def expect_error(handle):
    jax.block_until_ready(handle)
    print("begun", flush=True)
    try:
        with jo.typed_errors():
            jax.block_until_ready(end_program(handle))
        print("no error", flush=True)
    except jo.CollectiveError as error:
        print("error", error, flush=True)
        ranks = ",".join(map(str, error.ranks))
        facts = (type(error).__name__, ranks or "none", error.collective)
        print("typed", *facts, error.sequence, flush=True)


if HOW == "train":
    train(*sys.argv[2:])
elif HOW == "exit":
    begin = begin_program(mode="exact")
    if rank == 0:
        begin(rows(0))
    else:
        time.sleep(1.5)
        result = jax.block_until_ready(end_program(begin(rows(0))))
        wanted = np.asarray(
            np.random.default_rng(0).normal(size=(devices, 3000)), np.float32
        ).mean(0)
        got = np.asarray(result.addressable_data(0))[0]
        print("equal", np.allclose(got, wanted, atol=1e-6), flush=True)
elif HOW == "dead":
    begin = begin_program(mode="exact")
    jax.block_until_ready(end_program(begin(rows(0))))
    # A killed rank may leave data of this call unsent.
    coordination.exchange("before the signal", b"done", 60.0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    expect_error(begin(rows(0)))
elif HOW == "cancel":
    begin = begin_program(mode="exact")
    jax.block_until_ready(end_program(begin(rows(0))))
    if rank == 0:
        handle = begin(rows(0))
        jax.block_until_ready(handle)
        events.wait_for_a_call(communicator)
        communicator.cancel("it took too long")
        expect_error(handle)
        events.happens("cancelled")
    else:
        events.wait_for("cancelled")
        expect_error(begin(rows(0)))
    result = jax.block_until_ready(end_program(begin(rows(1))))
    print("next", np.isfinite(np.asarray(result.addressable_data(0))).all(), flush=True)
elif HOW == "disagree":
    mode = "exact" if rank == 0 else "agreed"
    expect_error(begin_program(mode=mode)(rows(0)))
