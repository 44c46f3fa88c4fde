"""The examples of replicas, and the programs of their pages, train."""

import re
import signal
import subprocess
import sys

import launched
import pytest

_DOCS = launched.EXAMPLES.parent / "docs"

# The names that the programs of both pages presume, and then those of each.
_BEFORE = """
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import jax_optireduce
from jax_optireduce import REPLICAS

TARGET = np.arange(4, dtype=np.float32)
steps = 100


def loss_fn(params, batch):
    return jnp.mean(jnp.square(batch @ (params["w"] - TARGET)))


def batch(step):
    place = session.place
    return np.random.default_rng((step, place)).standard_normal((16, 4), np.float32)


params = {name: jnp.zeros(4) for name in "wxyz"}
optimizer = optax.sgd(0.1)
"""
_OF_REPLICAS = """
state = TrainState.create(apply_fn=None, params=params, tx=optimizer)
"""
_OF_OUTER = """
session = jax_optireduce.init()


@jax.jit
def inner_step(params, inner, batch):
    gradients = jax.grad(loss_fn)(params, batch)
    updates, inner = optimizer.update(gradients, inner, params)
    return optax.apply_updates(params, updates), inner
"""
_AFTER = """
found = state.params if hasattr(state, "params") else own.anchors
print("off by", float(jnp.abs(found["w"] - TARGET).max()), "at", int(step))
"""


@pytest.mark.parametrize(
    ("page", "context"),
    [("replicas", _OF_REPLICAS), ("outer", _OF_OUTER)],
    ids=["replicas", "outer"],
)
def test_the_program_of_a_page_trains(page, context, tmp_path):
    text = (_DOCS / f"{page}.md").read_text()
    (block,) = re.findall(r"(?ms)^```python\n(.*?)^```", text)
    program = tmp_path / "page.py"
    program.write_text(_BEFORE + context + block + _AFTER)
    output = launched.run(program, tmp_path, processes=2, replicas=True)
    errors = re.findall(r"(?m)^\[\d\] off by (\S+) at 100$", output)
    assert len(errors) == 2, output
    assert all(float(error) < 0.2 for error in errors), output


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


def test_powersgd_learns_with_a_small_part_of_the_bytes(tmp_path):
    output = launched.run(
        *("powersgd.py", tmp_path, "--steps", "100"), processes=2, replicas=True
    )
    found = re.findall(r"held-out accuracy (\S+); sent (\S+) bytes a step", output)
    assert len(found) == 2, output
    for accuracy, sent in found:
        assert float(accuracy) > 0.7, output
        # Each of two replicas sends its half of the values, twice: the factors
        # of rank 4, and the biases, have 5,174, and the parameters 93,962.
        assert float(sent.replace(",", "")) < 4 * 93_962 / 8, output
