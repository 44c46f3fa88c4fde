"""Training by replicas, whose number changes.

Arguments: the mode of the gradients. The file "last" in the folder of the ranks has the
number of steps, once the test knows it. Gradients depend on the step and the replica.
Prints

  "joined <step> <rank> <size>"
                     at each `join`
  "step <number> <size> <digest>"
                     after each step: the number of replicas in the sum, and the bits
                     of the parameters
  "error <text>"     of a call
  "end <compiled>"   number of the programs that were compiled since the first step
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jax_optireduce as jo
from jax_optireduce import REPLICAS

MODE = sys.argv[1]
STEP_S = 0.05
LAST = Path(os.environ["RANKS_FOLDER"]) / "last"

communicator = jo.init()
assert not jax.distributed.is_initialized()
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
)


@jax.jit
def step(params, row):
    mean = jo.average_gradients(row, REPLICAS, name="gradients", mode=MODE)
    size = jo.psum(1, REPLICAS, name="size", mode="exact")
    return params - 0.1 * mean, size


@jax.jit
def drained(params):
    rest = jo.drain(params, REPLICAS, name="gradients", mode=MODE)
    return params - 0.1 * rest


def gradient(number):
    rng = np.random.default_rng((number, communicator.place))
    return rng.standard_normal(1000, np.float32)


def join(params, number):
    params, number = jo.join(params, number)
    place = communicator.rank, communicator.world_size
    print("joined", number, *place, flush=True)
    return params, number


params = jnp.zeros(1000)
compiled_step = step.lower(params, gradient(0)).compile()
drain = drained.lower(params).compile() if MODE == "bounded" else None
params, number = join(params, 0)
before = len(compiled)
while not LAST.exists() or number < int(LAST.read_text()):
    try:
        new, size = jax.block_until_ready(compiled_step(params, gradient(number)))
    except jax.errors.JaxRuntimeError as error:
        print("error", str(error).splitlines()[0], flush=True)
        params, number = join(params, number)
        continue
    params, number = new, number + 1
    digest = hashlib.sha256(np.asarray(params).tobytes()).hexdigest()[:16]
    print("step", number, int(size), digest, flush=True)
    params = jo.admit(params, number, drain)
    time.sleep(STEP_S)
print("end", len(compiled) - before, flush=True)
