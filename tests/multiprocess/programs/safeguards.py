"""Lossy calls of the Optax link, on a network with heavy loss.

Arguments: share of the datagrams that is lost, calls, value of `hadamard`, share for
`skip_above`, whether to pass `on_repeated_skips`. Prints "call <loss> <hadamard>
<quiet> <skipped> <in a row> <skips> <sequence> <zeros?>" for each call: the loss seen
by this rank, the state after it, the number of the call in its collective, and whether
the update was zero; "user <skips>" and "log <line>" when the callback runs.
"""

import logging
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import meshes
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_optireduce as jo

LOSS, CALLS, SKIP_ABOVE = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[4])
HADAMARD = {"auto": "auto", "False": False}[sys.argv[3]]
CALLBACK = sys.argv[5] == "callback"
# Each rank loses different datagrams.
FAULTS = {"loss": LOSS, "seed": 5 + int(os.environ["JAX_PROCESS_ID"])}


def main() -> None:
    """Runs all calls in one compiled program, one after the other."""
    link = jo.optax_average_gradients(
        "dp",
        mode="lossy",
        name="gradients",
        hadamard=HADAMARD,
        skip_above=SKIP_ABOVE,
        on_repeated_skips=(lambda n: print("user", n, flush=True))
        if CALLBACK
        else None,
    )
    mesh = meshes.make((jax.device_count(),), ("dp",))

    def local(own: Any) -> Any:
        def one_call(carry: Any, _: Any) -> Any:
            state, before = carry
            # Ranks start together, so that missing data was lost and not late.
            started = jo.psum(jnp.isfinite(before[0]).astype(before.dtype), "dp")
            gradients = {"w": own[0] * started, "b": own[0][:100] * started}
            means, state = link.update(gradients, state)
            last = state.last
            loss = jnp.maximum(last.missing_contributions, last.missing_results)
            zeros = ~(means["w"].any() | means["b"].any())
            report = loss, *state.safeguards, last.sequence, zeros
            return (state, means["w"]), report

        carry = link.init(None), own[0]
        reports = jax.lax.scan(one_call, carry, length=CALLS)[1]
        return jax.tree.map(lambda x: x[None], reports)

    program = jax.jit(
        jax.shard_map(
            local, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"), check_vma=False
        )
    )
    rows = np.random.default_rng(1).normal(size=(jax.device_count(), 40_000))
    reports = program(meshes.spread(mesh, rows.astype(np.float32)))
    columns = [next(iter(meshes.rows_here(x).values())) for x in reports]
    for loss, *row in zip(*columns, strict=True):
        print("call", float(loss), *map(int, row))
    jax.effects_barrier()


logging.basicConfig(format="log %(message)s")
with jo.init(faults=FAULTS):
    main()
