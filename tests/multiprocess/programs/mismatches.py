"""Ranks that make different calls: errors on both, and never a sum.

Prints for each case "<case> <message expected on both ranks>".
"""

from collections.abc import Callable
from typing import Any

import jax
import meshes
import numpy as np

import jax_optireduce as jo

RANK_DEPENDENT = {
    "shape": ({"size": 300}, {"size": 200}),
    "dtype": ({"dtype": "float32"}, {"dtype": "int32"}),
    "mode": ({"mode": "exact"}, {"mode": "lossy"}),
    "wire format": ({"wire_format": "bfloat16"}, {"wire_format": "int8"}),
    "name": ({"name": "left"}, {"name": "right"}),
}


def reduced_by(source_lines_before: int) -> Callable[..., Any]:
    """Compiles a user's source file, which may differ between ranks."""
    source = "\n" * source_lines_before + "def reduced(x): return jo.psum(x, 'dp')"
    namespace = {"jo": jo}
    exec(compile(source, "user.py", "exec"), namespace)  # noqa: S102
    return namespace["reduced"]


def call(
    *, size: int = 100, dtype: str = "float32", name: str, **how: str
) -> Callable[[], Any]:
    """Returns a compiled call; ranks may compile different ones."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    given = meshes.spread(mesh, np.ones((jax.device_count(), size), dtype))
    program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp", name=name, **how))
    return lambda: jax.block_until_ready(program(given))


def expect_error(case: str, function: Callable[[], Any]) -> None:
    """Prints the error of a call, which must fail."""
    try:
        function()
    except meshes.CALL_ERRORS as error:
        print(f"{case} {str(error).splitlines()[0]}", flush=True)
    else:
        raise AssertionError(f"{case}: a sum instead of an error")


with jo.init():
    call(name="together")()
    rank = jax.process_index()
    for case, variants in RANK_DEPENDENT.items():
        expect_error(case, call(**{"name": case, **variants[rank]}))
        # After an error both can still work together.
        call(name=f"after {case}")()
    mesh = meshes.make((jax.device_count(),), ("dp",))
    unnamed = meshes.mapped(mesh, reduced_by(40 + rank))
    ones = meshes.spread(mesh, np.ones((jax.device_count(), 100)))
    expect_error("source", lambda: jax.block_until_ready(unnamed(ones)))
    call(name="after source")()
    repeated = call(name="repeated")
    repeated()
    repeated()
    expect_error("count", repeated if rank == 0 else call(name="something else"))
    call(name="at last")()
    print("done")
