"""160 leaves in one call, not copied together; two sessions may run at once.

Arguments: a seed, a folder in which sessions meet, and the number of sessions. The sums
must be those of `lax.psum`, and of NumPy.
"""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import meshes
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_optireduce as jo

SEED = int(sys.argv[1])
MEETING = Path(sys.argv[2])
SESSIONS = int(sys.argv[3])

LEAVES = 160
STEPS = 30


def check_call(compiled: jax.stages.Compiled) -> None:
    """Checks that there is one call, and that no leaves were concatenated for it."""
    text = compiled.as_text()
    # Only the rank and its group, two integers, are concatenated.
    assert set(re.findall(r"= (\w+)\[\S* concatenate\(", text)) <= {"s32"}
    assert text.count('custom_call_target="jax_optireduce_allreduce"') == 1


def mapped(function: Callable[..., Any]) -> jax.stages.Compiled:
    """Compiles a function of each device's leaves; quickly, without slicing them."""
    program = jax.shard_map(
        function, mesh=mesh, in_specs=P("dp"), out_specs=P(), check_vma=False
    )
    return jax.jit(program).lower(given).compile()


def meet() -> None:
    """Waits for the other sessions."""
    MEETING.joinpath(str(SEED)).touch()
    while len(list(MEETING.iterdir())) < SESSIONS:
        time.sleep(0.01)


jo.init()
mesh = meshes.make((jax.device_count(),), ("dp",))
random = np.random.default_rng(SEED)
# A model has such leaves: biases, and matrices up to a hundred times as long.
shapes = [
    (size,) if size < 64 else (size, 32) for size in random.integers(1, 200, LEAVES)
]
whole = {
    f"leaf {i}": random.integers(-9, 10, (jax.device_count() * shape[0], *shape[1:]))
    for i, shape in enumerate(shapes)
}
given = {
    name: meshes.spread(mesh, rows.astype(np.float32)) for name, rows in whole.items()
}
expected = {
    name: rows.reshape(jax.device_count(), -1, *rows.shape[1:]).sum(0)
    for name, rows in whole.items()
}
reference = mapped(lambda tree: lax.psum(tree, "dp"))
sums = mapped(lambda tree: jo.psum(tree, "dp"))
check_call(sums)
jax.tree.map(np.testing.assert_array_equal, reference(given), expected)
meet()
for _ in range(STEPS):
    jax.tree.map(np.testing.assert_array_equal, sums(given), expected)
means = mapped(lambda tree: jo.average_gradients(tree, "dp", mode="agreed"))
check_call(means)
jax.tree.map(
    lambda mean, total: np.testing.assert_array_almost_equal_nulp(
        np.asarray(mean), (total / jax.device_count()).astype(np.float32)
    ),
    means(given),
    expected,
)
# The rotation needs them in one array: a handler copies them, once.
rotated = mapped(lambda tree: jo.psum(tree, "dp", mode="lossy"))
text = rotated.as_text()
assert text.count('custom_call_target="jax_optireduce_concatenate"') == 1
assert set(re.findall(r"= (\w+)\[\S* concatenate\(", text)) <= {"s32"}
jax.tree.map(
    lambda total, exact: np.testing.assert_allclose(total, exact, atol=1e-3),
    rotated(given),
    expected,
)
jo.shutdown()
