"""For all tests: eight CPU devices in one process, and a communicator on request.

The duration of a Hypothesis example depends on the load of the machine, and is no
failure.

The number of devices has to be set before the first import of JAX.
"""

import os
from collections.abc import Iterator

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    # Most of the time is that of the compiler.
    + " --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import hypothesis
import pytest

import jax_optireduce

hypothesis.settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("busy")


@pytest.fixture(scope="module")
def communicator() -> Iterator[jax_optireduce.Communicator]:
    """A session of this one process, for the tests of one file."""
    with jax_optireduce.init() as joined:
        yield joined
