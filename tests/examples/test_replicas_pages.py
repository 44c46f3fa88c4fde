"""The example of replicas, and the program of their page, train."""

import re
import signal
import subprocess
import sys

import launched

_PAGE = launched.EXAMPLES.parent / "docs/replicas.md"

# The names that the program of the page presumes.
_BEFORE = """
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import jax_optireduce
from jax_optireduce import REPLICAS

TARGET = np.arange(4, dtype=np.float32)
steps = 60


def loss_fn(params, batch):
    return jnp.mean(jnp.square(batch @ (params["w"] - TARGET)))


def batch(step):
    place = session.place
    return np.random.default_rng((step, place)).standard_normal((16, 4), np.float32)


state = TrainState.create(apply_fn=None, params={"w": jnp.zeros(4)}, tx=optax.sgd(0.1))
"""
_AFTER = """
print("off by", float(jnp.abs(state.params["w"] - TARGET).max()), "at", int(step))
"""


def test_the_program_of_the_page_trains(tmp_path):
    (block,) = re.findall(
        r"^```python\n(.*?)^```", _PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    program = tmp_path / "page.py"
    program.write_text(_BEFORE + block + _AFTER)
    output = launched.run(program, tmp_path, processes=2, replicas=True)
    errors = re.findall(r"^\[\d\] off by (\S+) at 60$", output, re.MULTILINE)
    assert len(errors) == 2, output
    assert all(float(error) < 1e-3 for error in errors), output


def test_a_killed_replica_of_the_example_comes_back(tmp_path):
    launch = [sys.executable, "-P", "-m", "jax_optireduce", "launch", "-n", "3"]
    program = [str(launched.EXAMPLES / "replicas.py"), "--steps", "200"]
    variables = {"JAX_OPTIREDUCE_PEER_TIMEOUT_S": "2"}
    with subprocess.Popen(
        [*launch, "--replicas", "--restart", "3", *program],
        cwd=tmp_path,
        env=launched.environment(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        lines = []
        killed = None
        for line in job.stdout:
            lines.append(line)
            if killed is None and "step 50" in line:
                killed = launched.kill(job.pid, "JAX_OPTIREDUCE_REPLICA=1")
        output = "".join(lines)
    assert job.returncode == 0, output
    assert killed, output
    assert f"ended with {signal.Signals.SIGKILL.name}" in output
    last = r"^\[\d\] step 200: loss \S+, 3 replicas$"
    assert len(re.findall(last, output, re.MULTILINE)) == 3, output
