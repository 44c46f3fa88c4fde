"""Calls over a network that loses one datagram in twenty.

Prints "retransmitted <in the flight record> <in the counters>".
"""

import jax
import meshes
import numpy as np

import jax_optireduce as jo

CALLS = 10

with jo.init() as communicator:
    mesh = meshes.make((jax.device_count(),), ("dp",))
    program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", mode="exact"))
    given = meshes.spread(mesh, np.ones((jax.device_count(), 50_000), np.float32))
    for _ in range(CALLS):
        jax.block_until_ready(program(given))
    recorded = sum(call["retransmitted"] for call in communicator.flight_record())
    counted = communicator.counters()["segments_retransmitted"]
    print("retransmitted", int(recorded), counted, flush=True)
