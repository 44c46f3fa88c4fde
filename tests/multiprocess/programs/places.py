"""The keys of the coordination service after `init`, and a rank that starts twice.

Arguments: "keys", or "train" with the path of a file, which comes to exist and has the
number of steps. Prints "key <name> <digest>", or "step <number>" and "joined"; "error
<message>" when `init` fails.
"""

import itertools
import os
import re
import sys
import time
from pathlib import Path

import jax
import meshes
import numpy as np

import jax_optireduce as jo
from jax_optireduce._jax import coordination

try:
    jo.init(peer_timeout_s=2.0, deadline_s=0.5)
except jo.RendezvousError as error:
    print("error", error, flush=True)
    sys.exit(1)
print("joined", os.getpid(), flush=True)
mesh = meshes.make((jax.device_count(),), ("dp",))
program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", mode="bounded", name="call"))
given = meshes.spread(mesh, np.ones((jax.device_count(), 10), np.float32))
jax.block_until_ready(program(given))
if sys.argv[1] == "keys":
    # A rank that has taken part in a call has completed its `init`.
    time.sleep(0.5)
    for key, value in coordination._client().key_value_dir_get_bytes(
        "jax_optireduce/0/"
    ):
        secret = len(value) == 32 or re.search(rb"[0-9a-f]{64}", value)
        print("key", key.rsplit("/", 2)[-2], bool(secret), flush=True)
else:
    steps = Path(sys.argv[2])
    for step in itertools.count():
        if steps.exists() and step >= int(steps.read_text()):
            break
        jax.block_until_ready(program(given))
        print("step", step, flush=True)
        time.sleep(0.1)
