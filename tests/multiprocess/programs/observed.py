"""Three ranks, of which rank 2 starts late: metrics, a profile, records, replicas.

Argument: a folder. Each rank writes its flight record there, its metrics and its
profile. Prints "unequal <text>" for the error about a changed replica, and "drift
<figures>".
"""

import sys
import time
import urllib.request
from pathlib import Path

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import prometheus_client

import jax_optireduce as jo
from jax_optireduce.metrics import Collector

FOLDER = Path(sys.argv[1])
SLOW_RANK, STEPS = 2, 4
SIZE = 20_000

registry = prometheus_client.CollectorRegistry()
registry.register(Collector())
# Without a communicator there are no metrics, and no error.
assert prometheus_client.generate_latest(registry) == b""


def scraped(port: int) -> str:
    """Returns the metrics as a server of Prometheus receives them."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


with jo.init() as communicator:
    rank, ranks = communicator.rank, communicator.world_size
    mesh = meshes.make((ranks,), ("dp",))
    step = meshes.mapped(mesh, lambda x: jo.pmean(x * 2, "dp", name="grads"))
    rows = meshes.spread(mesh, np.ones((ranks, SIZE), np.float32))
    for number in range(STEPS):
        if rank == SLOW_RANK:
            time.sleep(0.3)
        if number == STEPS - 1:
            with jax.profiler.trace(FOLDER / f"profile {rank}"):
                jax.block_until_ready(step(rows))
                # The event of the end of the call is still open.
                time.sleep(0.2)
        else:
            jax.block_until_ready(step(rows))
    communicator.dump_flight_record(FOLDER / f"{rank}.jsonl")

    server, thread = prometheus_client.start_http_server(
        0, addr="127.0.0.1", registry=registry
    )
    (FOLDER / f"{rank}.metrics").write_text(scraped(server.server_port))
    server.shutdown()
    thread.join()

    # A step has such a result if its `out_specs` say that it is equal on all ranks.
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def replicated(row: np.ndarray) -> jax.Array:
        """Returns an array of which this process holds this replica."""
        own = jax.device_put(row, jax.local_devices()[0])
        return jax.make_array_from_single_device_arrays(row.shape, whole, [own])

    equal = np.arange(8, dtype=np.float32)
    changed = equal + (rank == 1)
    tree = {"a": replicated(equal), "b": jnp.asarray(equal), "c": 3}
    jo.assert_replicas_equal(tree)
    for other in (
        {**tree, "b": replicated(changed)},
        {**tree, "b": jnp.asarray(changed)},
        {"a": tree["a"]} if rank == 1 else tree,
    ):
        try:
            jo.assert_replicas_equal(other)
        except jo.ReplicasDifferError as error:
            print("unequal", error, flush=True)
    jo.assert_replicas_equal(tree)
    drift = jax.jit(
        jax.shard_map(
            lambda x: jo.replica_drift(x, "dp"),
            mesh=mesh,
            in_specs=jax.sharding.PartitionSpec(),
            out_specs=jax.sharding.PartitionSpec(),
            check_vma=False,
        )
    )
    print("drift", *np.asarray(drift(replicated(equal)).addressable_data(0)))
    print("drift", *np.asarray(drift(replicated(changed)).addressable_data(0)))
