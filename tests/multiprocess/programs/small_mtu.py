"""Calls until one fails. Prints "calling" after a few, then the error, which is typed.

"error <type> <ranks, separated by commas> <message>".

Leaves the session only when it is killed: another rank may need some time more to find
its own error.
"""

import sys
import time

import jax
import meshes
import numpy as np

import jax_optireduce as jo

MODE = sys.argv[1]
# Chosen: calls for 15 s, far longer than peer_timeout_s of the test.
CALLS = 1_000_000

with jo.init():
    mesh = meshes.make((jax.device_count(),), ("dp",))
    program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", mode=MODE, name="grads"))
    given = meshes.spread(mesh, np.ones((jax.device_count(), 5000), np.float32))
    try:
        with jo.typed_errors():
            for call in range(CALLS):
                jax.block_until_ready(program(given))
                if call == 20:
                    print("calling", flush=True)
    except jo.CollectiveError as error:
        ranks = ",".join(map(str, error.ranks))
        print(f"error {type(error).__name__} {ranks} {error}", flush=True)
        time.sleep(3600)
