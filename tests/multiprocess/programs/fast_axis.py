"""Sums over two axes, of which one is fast, in processes with several devices.

Arguments: "bytes", or "data" and a mode. Prints

  "bytes <with fast_axis> <every device sends all>"
                        sent by this process for as many calls of either form
  "copies <number>"     of different results of one call on the devices of the process
  "reports <number>"    of different reports of one call there
  "missing <share>"     mean over the calls
  "conserved <error>"   of all calls and a drain, compared with the contributions
"""

import functools
import sys

import jax
import meshes
import numpy as np
from jax import lax

import jax_optireduce as jo

CALLS = 12
AXES = ("slow", "fast")
# The second is no multiple of the devices.
SHAPES = {"even": (40_000,), "odd": (30_011,)}


def psum(tree, mode, **arguments):
    return jo.psum(tree, AXES, mode=mode, fast_axis="fast", name="sums", **arguments)


def distinct(x):
    """Returns the number of different values on the devices of this process."""
    return len({np.asarray(s.data).tobytes() for s in x.addressable_shards})


def check_bytes(mesh):
    x = meshes.spread(mesh, np.ones((mesh.size, 400_000), np.float32))
    forms = (
        functools.partial(psum, mode="exact"),
        lambda x: jo.psum(lax.psum(x, "fast"), "slow", name="whole"),
    )
    sent = []
    for form in forms:
        program = meshes.mapped(mesh, form)
        before = jo.stats()["bytes_sent"]
        for _ in range(CALLS):
            jax.block_until_ready(program(x))
        sent.append(jo.stats()["bytes_sent"] - before)
    print("bytes", *sent)


def check_data(mesh, mode):
    draw = np.random.default_rng(0)
    call = meshes.mapped(mesh, functools.partial(psum, mode=mode, return_stats=True))

    def drain(tree):
        how = {"mode": mode, "name": "sums", "mean": False}
        return jo.drain(tree, AXES, fast_axis="fast", **how)

    total = dict.fromkeys(SHAPES, 0.0)
    expected = dict.fromkeys(SHAPES, 0.0)
    copies, reports, missing = 0, 0, []

    def add(sums):
        for name, x in sums.items():
            total[name] = total[name] + np.asarray(x.addressable_data(0), float)

    for _ in range(CALLS):
        rows = {
            name: draw.integers(-9, 10, (mesh.size, *shape)).astype(np.float32)
            for name, shape in SHAPES.items()
        }
        for name, row in rows.items():
            expected[name] = expected[name] + row.sum(0, dtype=float)
        sums, report = call({n: meshes.spread(mesh, row) for n, row in rows.items()})
        jax.block_until_ready(sums)
        add(sums)
        copies = max([copies, *map(distinct, sums.values())])
        reports = max([reports, *map(distinct, jax.tree.leaves(report))])
        late = report.missing_contributions + report.missing_results
        missing.append(float(late.addressable_data(0)[0]))
    add(meshes.mapped(mesh, drain)(sums))
    error = max(np.abs(total[name][0] - expected[name]).max() for name in SHAPES)
    print("copies", copies)
    print("reports", reports)
    print("missing", np.mean(missing))
    print("conserved", error)


with jo.init():
    mesh = meshes.make((jax.process_count(), jax.local_device_count()), AXES)
    if sys.argv[1] == "bytes":
        check_bytes(mesh)
    else:
        check_data(mesh, sys.argv[2])
