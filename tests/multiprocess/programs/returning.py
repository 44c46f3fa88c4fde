"""Training in which ranks come back.

Arguments: the seconds of a step, and optionally the entries of the parameters, and
"different": each rank begins at the step with its number. The file "last" in the folder
of the ranks has the number of steps, once the test knows it.
Gradients depend on the step and the rank. Prints

  "life <number>"    at the start
  "log <line>"       for each line of the log
  "back <step>"      at the step at which this process begins
  "step <number> <live processes>"
                     after each step
  "deadline <number> <seconds>"
                     of the call in this step
  "compiled <number>" the programs that were compiled since the first step
  "bits <digest>"    of the parameters at the end, after a drain and a resync
"""

import logging
import os
import sys
import time
from pathlib import Path

import jax
import meshes
import numpy as np

import jax_optireduce as jo

STEP_S = float(sys.argv[1])
ENTRIES = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000
LAST = Path(os.environ["RANKS_FOLDER"]) / "last"
SLOW = 0.05

logging.basicConfig(format="log %(message)s", level=logging.INFO)
communicator = jo.init()
rank, ranks = jax.process_index(), jax.device_count()
mesh = meshes.make((ranks,), ("dp",))


def apply(state, gradient):
    momentum = 0.5 * state["momentum"] + gradient
    return {"params": state["params"] - SLOW * momentum, "momentum": momentum}


def step(state, row):
    mean, report = jo.average_gradients(
        row[0], "dp", name="gradients", return_stats=True
    )
    return apply(state, mean), (report.live_processes[None], report.deadline_s[None])


def drained(state):
    return apply(state, jo.drain(state["params"], "dp", name="gradients"))


def ended(state):
    # The data of a dead rank may have reached some of the others only.
    return jo.resync(drained(state), "dp")


P = jax.sharding.PartitionSpec
everywhere = jax.sharding.NamedSharding(mesh, P())


def mapped(function, *specs):
    return jax.jit(
        jax.shard_map(
            function,
            mesh=mesh,
            in_specs=specs,
            out_specs=(P(), P("dp")) if len(specs) > 1 else P(),
            check_vma=False,
        )
    )


def replicated(value):
    return jax.make_array_from_process_local_data(everywhere, value)


def rows(number):
    own = np.random.default_rng((number, rank)).integers(-9, 10, (1, ENTRIES))
    return jax.make_array_from_process_local_data(
        jax.sharding.NamedSharding(mesh, P("dp")), own.astype(np.float32)
    )


zeros = np.zeros(ENTRIES, np.float32)
state = {"params": replicated(zeros), "momentum": replicated(zeros)}
train = mapped(step, P(), P("dp")).lower(state, rows(0)).compile()
drain = mapped(drained, P()).lower(state).compile()

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
)
state, number = jo.join(state, rank if "different" in sys.argv else 0)
print("back", number, flush=True)
if number == 0:
    # A process that comes back has not made this comparison.
    jo.assert_replicas_equal(state)
first = 0
while not LAST.exists() or number < int(LAST.read_text()):
    time.sleep(STEP_S)
    state, report = train(state, rows(number))
    number += 1
    live, deadline_s = (each.addressable_data(0)[0] for each in report)
    print("step", number, int(live), flush=True)
    print("deadline", number, float(deadline_s), flush=True)
    state = jo.admit(state, number, drain)
    # The first step may compile small programs, such as those of its arguments.
    first = first or len(compiled)
print("compiled", len(compiled) - first)
state = jax.block_until_ready(mapped(ended, P())(state))
jo.assert_replicas_equal(state)
print(
    "bits", meshes.digest(np.asarray(state["params"].addressable_data(0))), flush=True
)
jo.shutdown()
