"""Tests the installed package from the view of a user, outside of the checkout.

    python tools/check_installed.py

`make wheel` and the release run it in an environment with only the wheel and its
requirements: `doctor` passes, the simulator runs, and two processes sum.
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

_SUM = """\
import functools

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce

jax_optireduce.init()
mesh = jax.make_mesh((jax.device_count(),), ("data",))
own = np.full(4, 1.0 + jax.process_index(), np.float32)
x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), own)
psum = functools.partial(jax_optireduce.psum, axis_name="data")
psum = jax.shard_map(psum, mesh=mesh, in_specs=P("data"), out_specs=P())
total = np.asarray(jax.jit(psum)(x).addressable_data(0))
np.testing.assert_array_equal(total, np.full(4, 3.0, np.float32))
print("rank", jax.process_index(), "has the sum", total)
"""


def main() -> None:
    """Runs the checks; a failed one raises an exception."""
    found = importlib.util.find_spec("jax_optireduce")
    if found is None or found.origin is None:
        sys.exit("jax_optireduce is not installed here")
    if Path(found.origin).is_relative_to(ROOT / "jax_optireduce"):
        sys.exit(f"{found.origin} is the checkout's: install the wheel, not editable")
    if importlib.util.find_spec("optireduce_testing") is not None:
        sys.exit("the wheel holds optireduce_testing, which is for tests only")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "sum.py"
        program.write_text(_SUM)
        for arguments in (
            ("doctor",),
            ("simulate", "--seed", "1"),
            ("launch", "-n", "2", str(program)),
        ):
            command = [sys.executable, "-m", "jax_optireduce", *arguments]
            print("$ python -m jax_optireduce", *arguments, flush=True)  # noqa: T201
            subprocess.run(command, check=True, cwd=folder)


if __name__ == "__main__":
    main()
