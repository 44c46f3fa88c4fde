"""Runs an example in several processes of this host."""

import os
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

# Seconds for one example. Chosen: ten times its duration on two idle cores.
TIMEOUT_S = 240


def environment(variables):
    """Returns the variables of a launcher."""
    return {
        **os.environ,
        # Most of the time is that of the compiler. The launcher adds the devices.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        # A busy machine is late, and a late loss is that of a later step.
        "JAX_OPTIREDUCE_DEADLINE_MAX_S": "30",
        **variables,
    }


def kill(launcher, variable):
    """Kills the processes of a launcher with this variable; returns their number."""
    killed = 0
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
    for pid in children.split():
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if variable.encode() in variables:
            os.kill(int(pid), signal.SIGKILL)
            killed += 1
    return killed


def run(
    program,
    folder,
    *arguments,
    processes,
    devices=1,
    code=0,
    replicas=False,
    **variables,
):
    """Returns the output of an example, of both streams.

    Args:
      program: name of its file, or the path of another program.
      folder: in which it runs.
      *arguments: its own.
      processes: their number.
      devices: of each process.
      code: the expected exit code.
      replicas: whether JAX does not connect them.
      **variables: of the environment.
    """
    launch = [sys.executable, "-P", "-m", "jax_optireduce", "launch"]
    launch += ["-n", str(processes), "--devices-per-process", str(devices)]
    launch += ["--replicas"] if replicas else []
    ended = subprocess.run(
        [*launch, str(EXAMPLES / program), *arguments],
        cwd=folder,
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == code, output
    return output
