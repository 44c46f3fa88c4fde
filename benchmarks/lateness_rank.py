"""One rank of `lateness.py`: makes calls, and notes the statistics of each.

    python -m jax_optireduce launch -n 4 benchmarks/lateness_rank.py plan.json folder

The program prints "pid <number>" after compilation and "call <number>" before every
tenth call, for the parent. It writes `rank<i>.json` into the folder.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jax_optireduce

AXIS = "ranks"

# Computation of a step between two calls, in seconds.
# Chosen: about the time of a healthy call of 1 MiB, so that calls are not adjacent.
COMPUTE_S = 0.02

# Calls between two lines of output.
REPORT_EVERY = 10

# The contribution of a rank to a call is a row of whole numbers times one of these, in
# turn: every sum is exact, and reveals lost and repeated parts.
WEIGHTS = (1, 2, 3)

# The recorded statistics of a call.
NOTED = (
    "elapsed_s",
    "deadline_s",
    "missing_contributions",
    "missing_results",
    "deferred",
    "slowest_process",
    "live_processes",
)


class Lines(logging.Handler):
    """Keeps the log lines of the library."""

    def __init__(self) -> None:
        """Starts without a line."""
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one line."""
        self.lines.append(record.getMessage())


def weight_of(rank: int, call: int) -> int:
    """Returns the factor of the row in a call."""
    return WEIGHTS[(rank + call) % len(WEIGHTS)]


def own(tree: Any) -> Any:
    """Returns this rank's row of global arrays."""
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0))[0], tree)


def mapped(mesh: Mesh, function: Callable[[jax.Array], Any]) -> Callable[..., Any]:
    """Maps a function of one row over the ranks."""

    def local(rows: jax.Array) -> Any:
        return jax.tree.map(lambda x: x[None], function(rows[0]))

    spec = PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )


def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Makes the calls of a plan and a drain; returns their statistics.

    Args:
      plan: `mode`, `bytes` of the bucket, number of `calls` of the session, some of
        which a rank may skip, and `sleep_s`: sleep of the last rank before each call,
        in seconds.
    """
    rank, ranks = jax.process_index(), jax.process_count()
    pause_s = COMPUTE_S + (plan["sleep_s"] if rank == ranks - 1 else 0.0)
    mesh = jax.make_mesh((ranks,), (AXIS,), axis_types=(AxisType.Auto,))
    arguments = {"mode": plan["mode"], "name": "lateness"}
    call = mapped(
        mesh, lambda x: jax_optireduce.psum(x, AXIS, **arguments, return_stats=True)
    )
    drain = mapped(
        mesh, lambda x: jax_optireduce.drain(x, AXIS, mean=False, **arguments)
    )
    together = mapped(mesh, lambda x: jax_optireduce.psum(x, AXIS, name="together"))

    random = np.random.default_rng(1)
    row = random.integers(1, 10, plan["bytes"] // 4).astype(np.float32)
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    scaled = {
        weight: jax.make_array_from_process_local_data(sharding, (row * weight)[None])
        for weight in WEIGHTS
    }
    # Compilation precedes the first counted call.
    for program in (call, drain, together):
        jax.block_until_ready(program(scaled[1]))
    print("pid", os.getpid(), flush=True)

    got, given = np.zeros(row.size), 0
    began, seconds, reports, error = [], [], [], ""
    cpu_s, last = time.process_time(), 0
    try:
        # The first call of the session is that of the compilation.
        while last < plan["calls"]:
            if len(began) % REPORT_EVERY == 0:
                print("call", len(began), flush=True)
            time.sleep(pause_s)
            weight = weight_of(rank, len(began))
            start = time.monotonic()
            total, report = jax.block_until_ready(call(scaled[weight]))
            seconds.append(time.monotonic() - start)
            began.append(start)
            report = own(report)
            reports.append([float(getattr(report, name)) for name in NOTED])
            given += weight
            got += own(total)
            last = int(report.sequence)
        cpu_s = time.process_time() - cpu_s
        got += own(drain(total))
    except (jax.errors.JaxRuntimeError, ValueError) as failure:
        error = str(failure).splitlines()[0]
    received = got / row
    return {
        "began": began,
        "seconds": seconds,
        "reports": reports,
        "error": error,
        "cpu_s": cpu_s,
        # The factors of this rank's contributions, and the extremes of all results.
        "given": given,
        "received": [] if error else [received.min(), received.max()],
    }


def main() -> None:
    """Joins the session of the plan, runs it, and writes the outcome."""
    plan, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    log = Lines()
    logging.getLogger("jax_optireduce").addHandler(log)
    with jax_optireduce.init(**plan["options"]) as communicator:
        result = run(plan)
        result |= {"log": log.lines, "counters": communicator.counters()}
        path = folder / f"rank{communicator.rank}.json"
        path.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
