"""Copies of a value on the devices of a process, in calls that miss data.

Argument: the mode. Prints "missing <share>", the mean over the calls; "copies <largest
difference between two copies of a leaf>"; "unreported <calls of which a wrong result
was not reported>"; and "spread <largest number of reports of one process>".
"""

import functools
import sys

import jax
import meshes
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce as jo

CALLS = 12
# The first cannot be divided; the second can, and its specs say nothing of it.
LEAVES = {
    "odd": np.arange(30_011, dtype=np.float32),
    "even": np.arange(40_000, dtype=np.float32),
}

with jo.init():
    mesh = meshes.make(
        (jax.process_count(), jax.local_device_count()), ("slow", "fast")
    )
    everywhere = NamedSharding(mesh, P())
    given = {
        name: jax.make_array_from_callback(x.shape, everywhere, lambda at, x=x: x[at])
        for name, x in LEAVES.items()
    }

    @functools.partial(jax.jit, out_shardings=everywhere)
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=P(),
        out_specs=P(),
        axis_names={"slow"},
        check_vma=False,
    )
    def program(x):
        mode, specs = sys.argv[1], P()
        return jo.average_gradients(
            x, "slow", mode=mode, specs=specs, return_stats=True
        )

    missing, copies, unreported, reports = [], 0.0, 0, 0
    for _ in range(CALLS):
        means, report = jax.block_until_ready(program(given))
        parts = [report.missing_contributions, report.missing_results, report.deferred]
        # One value for each device of this process.
        shares = {
            sum(float(part.addressable_data(i)) for part in parts)
            for i in range(jax.local_device_count())
        }
        reports = max(reports, len(shares))
        missing.append(max(shares))
        wrong = 0.0
        for name, mean in means.items():
            first, *others = (np.asarray(s.data) for s in mean.addressable_shards)
            copies = max([copies, *(np.abs(first - other).max() for other in others)])
            wrong = max(wrong, np.abs(first - LEAVES[name]).max())
        unreported += bool(wrong > 1e-2 and missing[-1] == 0)
    print(f"missing {np.mean(missing):.4f}")
    print(f"copies {copies}")
    print(f"unreported {unreported}")
    print(f"spread {reports}", flush=True)
