"""The last rank kills or stops itself between two calls; the others continue.

Arguments: mode, and the signal. Prints for each later call of the others "error
<message>" or "value <value> <missing contributions>".
"""

import os
import signal
import sys

import jax
import meshes
import numpy as np

import jax_optireduce as jo
from jax_optireduce._jax import coordination

MODE, SIGNAL = sys.argv[1], signal.Signals[sys.argv[2]]
CALLS = 3

with jo.init(peer_timeout_s=2.0, deadline_s=1.0):
    mesh = meshes.make((jax.device_count(),), ("dp",))
    # A rank that leaves the mesh must not be needed for the compilation of the others.
    program = meshes.mapped(
        mesh, lambda x: jo.psum(x, "dp", mode=MODE, name="grads", return_stats=True)
    )
    given = meshes.spread(mesh, np.ones((jax.device_count(), 5000), np.float32))
    jax.block_until_ready(program(given))
    # A killed rank may leave data of this call unsent.
    coordination.exchange("before the signal", b"done", 60.0)
    if jax.process_index() == jax.process_count() - 1:
        os.kill(os.getpid(), SIGNAL)
    for _ in range(CALLS):
        try:
            total, report = jax.block_until_ready(program(given))
        except meshes.CALL_ERRORS as error:
            print("error", str(error).splitlines()[0], flush=True)
            break
        (row,) = meshes.rows_here(total).values()
        (missing,) = meshes.rows_here(report.missing_contributions).values()
        print(f"value {row.mean():.3f} {missing:.3f}", flush=True)
    print("done", flush=True)
