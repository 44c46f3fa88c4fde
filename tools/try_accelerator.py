"""Examines the calls of this package on GPU or TPU devices, for the first time.

    python tools/try_accelerator.py                               one process
    srun -N 2 python tools/try_accelerator.py --json result.json  two hosts

Each line answers one statement of docs/accelerators.md that has no proof yet: "yes",
"no", or a figure. All calls are host computations, on CPU devices too; `--host-call
callback` examines the other way of TPUs. Exit code: 0 if all comparisons are right on
this process, otherwise 1. Please report the output of rank 0.
"""

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce as jo
from jax_optireduce._session import accelerators

_MIB = 1 << 20

# Chosen: more than the rounding of 20 steps of float32, much less than a wrong sum.
_TOLERANCE = 1e-5


class Answers:
    """The answers of this process.

    Attributes:
      rows: of each statement: the statement, the answer, details.
      right: whether all comparisons are right.
    """

    def __init__(self, rank: int) -> None:
        """Only rank 0 prints right answers; each rank prints wrong ones."""
        self._rank = rank
        self.rows: list[dict[str, str]] = []
        self.right = True

    def compare(self, statement: str, largest_difference: float, limit: float) -> None:
        """Adds a comparison; a NaN is wrong."""
        right = largest_difference <= limit
        self.right &= right
        detail = f"largest difference {largest_difference:g}, permitted {limit:g}"
        self.add(statement, "yes" if right else "NO", detail)

    def add(self, statement: str, answer: str, detail: str = "") -> None:
        """Adds an answer."""
        self.rows.append({"statement": statement, "answer": answer, "detail": detail})
        if self._rank == 0 or answer == "NO":
            place = "" if self._rank == 0 else f"rank {self._rank}: "
            more = f" ({detail})" if detail else ""
            sys.stdout.write(f"{place}{statement}: {answer}{more}\n")
            sys.stdout.flush()


def make_mesh() -> Mesh:
    """Returns a mesh [hosts, devices of each], or [devices, 1] of one process."""
    processes, local = jax.process_count(), jax.local_device_count()
    shape = (processes, local) if processes > 1 else (local, 1)
    return jax.make_mesh(
        shape, ("slow", "fast"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()
    )


def rows_of(mesh: Mesh, rows: np.ndarray) -> jax.Array:
    """Places row i on each device of host i."""
    where = NamedSharding(mesh, P("slow"))
    return jax.make_array_from_callback(rows.shape, where, lambda at: rows[at])


def reducing(
    mesh: Mesh, function: Callable[..., Any], *, partly: bool = False
) -> Callable[..., Any]:
    """Maps a function of the row of each host; the results are replicated."""
    mapped = jax.shard_map(
        lambda x: function(x[0]),
        mesh=mesh,
        in_specs=P("slow"),
        out_specs=P(),
        axis_names={"slow"} if partly else {"slow", "fast"},
        check_vma=False,
    )
    return jax.jit(mapped, out_shardings=NamedSharding(mesh, P()))


def difference(ours: Any, theirs: Any) -> float:
    """Returns the largest difference of two trees, on the devices of this process."""
    found = 0.0
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    for a, b in pairs:
        for left, right in zip(a.addressable_shards, b.addressable_shards, strict=True):
            apart = np.asarray(left.data, float) - np.asarray(right.data, float)
            found = max(found, float(np.abs(apart).max(initial=0)))
            if np.isnan(apart).any():
                return float("nan")
    return found


def examine_plugins(answers: Answers) -> None:
    """States which plug-ins have taken the handlers."""
    platform = jax.default_backend()
    device = jax.devices()[0].device_kind
    answers.add("devices", f"{jax.device_count()} of {platform}", device)
    names = {"gpu": ("cuda", "rocm")}.get(platform, (platform,))
    plugins = [p for p in accelerators.register() if p.platform in names]
    for plugin in plugins:
        answers.add(
            f"the plug-in of {plugin.platform} takes the handlers",
            "NO" if plugin.refusal else "yes",
            plugin.refusal or f"PJRT {plugin.version}",
        )
    if not plugins:
        answers.add("a plug-in takes the handlers", "no plug-in", "CPU devices")


def examine_sums(mesh: Mesh, answers: Answers, sizes_mib: Sequence[float]) -> None:
    """Compares sums of whole numbers with those of XLA, bit for bit."""
    hosts = mesh.shape["slow"]
    random = np.random.default_rng(1)
    for dtype in ("float32", "bfloat16", "float16", "int32"):
        rows = random.integers(-9, 10, (hosts, 300, 70)).astype(jnp.dtype(dtype))
        given = rows_of(mesh, rows)
        for partly in (False, True):
            if partly and dtype == "bfloat16" and jax.default_backend() == "cpu":
                continue  # XLA:CPU ends the process at its own sum.
            ours = reducing(mesh, lambda x: jo.psum(x, "slow"), partly=partly)(given)
            theirs = reducing(mesh, lambda x: jax.lax.psum(x, "slow"), partly=partly)(
                given
            )
            region = "some axes manual" if partly else "all axes manual"
            answers.compare(
                f"psum of {dtype} equals lax.psum, {region}",
                difference(ours, theirs),
                0.0,
            )
    for mib in sizes_mib:
        rows = random.integers(-9, 10, (hosts, int(mib * _MIB) // 4))
        given = rows_of(mesh, rows.astype(np.float32))
        ours = reducing(mesh, lambda x: jo.psum(x, "slow"))(given)
        theirs = reducing(mesh, lambda x: jax.lax.psum(x, "slow"))(given)
        answers.compare(
            f"psum of {mib:g} MiB equals lax.psum", difference(ours, theirs), 0.0
        )


def examine_rotation(mesh: Mesh, answers: Answers) -> None:
    """Compares a lossy mean, of which nothing is lost, with that of XLA."""
    random = np.random.default_rng(2)
    rows = random.normal(size=(mesh.shape["slow"], 50_000)).astype(np.float32)
    given = rows_of(mesh, rows)
    for counted in (False, True):

        def mean(x: Any, *, counted: bool = counted) -> Any:
            # The second has no step: the number of the call is taken on the host.
            step = None if counted else (x[0] * 0).astype(jnp.int32)
            return jo.pmean(
                x, "slow", mode="lossy", step=step, name=f"rotated {counted}"
            )

        ours = reducing(mesh, mean)(given)
        theirs = reducing(mesh, lambda x: jax.lax.pmean(x, "slow"))(given)
        answers.compare(
            f"lossy pmean equals lax.pmean, {'counted' if counted else 'with step'}",
            difference(ours, theirs),
            1e-4,
        )


def train(mesh: Mesh, steps: int, *, ours: bool) -> Any:
    """Returns the parameters after some steps of SGD; the model is over "fast"."""
    width = 64
    specs = {"down": P(None, "fast"), "up": P("fast"), "bias": P()}
    random = np.random.default_rng(3)
    shapes = {"down": (width, 256), "up": (256, width), "bias": (256,)}
    params = {
        name: jax.make_array_from_callback(
            shape,
            NamedSharding(mesh, specs[name] if mesh.shape["fast"] > 1 else P()),
            functools.partial(
                lambda values, at: values[at],
                random.normal(size=shape, scale=0.1).astype(np.float32),
            ),
        )
        for name, shape in shapes.items()
    }
    batch = random.normal(size=(mesh.shape["slow"], 16, width)).astype(np.float32)

    def loss_of(params: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ params["down"] + params["bias"])
        return jnp.mean((x - hidden @ params["up"]) ** 2)

    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss_of)(params, x[0])
        if ours:
            gradients = jo.average_gradients(
                gradients, "slow", mode="exact", specs=specs
            )
        else:
            gradients = jax.lax.pmean(gradients, "slow")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    program = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(P(), P("slow")),
            out_specs=P(),
            axis_names={"slow"},
            check_vma=False,
        ),
        out_shardings=jax.tree.map(lambda x: x.sharding, params),
    )
    given = rows_of(mesh, batch)
    for _ in range(steps):
        params = jax.block_until_ready(program(params, given))
    return params


def median_ms(program: Callable[..., Any], given: Any, calls: int) -> float:
    """Returns the median time of a call, in ms; the first one compiles."""
    jax.block_until_ready(program(given))
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        jax.block_until_ready(program(given))
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * 1e3


def measure(
    mesh: Mesh, answers: Answers, sizes_mib: Sequence[float], calls: int
) -> None:
    """Measures calls, and a call beside a computation that does not need it."""
    for mib in sizes_mib:
        rows = np.ones((mesh.shape["slow"], int(mib * _MIB) // 4), np.float32)
        given = rows_of(mesh, rows)
        ours = median_ms(reducing(mesh, lambda x: jo.psum(x, "slow")), given, calls)
        theirs = median_ms(
            reducing(mesh, lambda x: jax.lax.psum(x, "slow")), given, calls
        )
        answers.add(
            f"time of a call of {mib:g} MiB",
            f"{ours:.2f} ms",
            f"lax.psum {theirs:.2f} ms, ratio {ours / theirs:.2f}",
        )
    width = 512 if jax.default_backend() == "cpu" else 4096
    mib = sizes_mib[-1]
    rows = np.ones((mesh.shape["slow"], int(mib * _MIB) // 4), np.float32)
    given = rows_of(mesh, rows)

    def compute(x: Any) -> Any:
        y = jnp.full((width, width), 1e-3) + x[0]
        return jax.lax.fori_loop(0, 10, lambda _, y: jnp.tanh(y @ y), y)

    def call(x: Any) -> Any:
        return jo.psum(x, "slow", name="beside")

    alone = median_ms(reducing(mesh, compute), given, calls)
    called = median_ms(reducing(mesh, call), given, calls)
    both = median_ms(reducing(mesh, lambda x: (compute(x), call(x))), given, calls)
    # The figures vary, hence the bounds.
    hidden = min(max((alone + called - both) / min(alone, called), 0.0), 1.0)
    answers.add(
        "share of the shorter of computation and call that overlaps",
        f"{hidden:.0%}",
        f"computation {alone:.2f} ms, call {called:.2f} ms, both {both:.2f} ms",
    )


def profile(mesh: Mesh, answers: Answers, folder: Path) -> None:
    """Writes a profile of three calls, and names its longest events."""
    rows = np.ones((mesh.shape["slow"], 4 * _MIB // 4), np.float32)
    given = rows_of(mesh, rows)
    program = reducing(mesh, lambda x: jo.psum(x, "slow", name="profiled"))
    jax.block_until_ready(program(given))
    with jax.profiler.trace(str(folder)):
        for _ in range(3):
            jax.block_until_ready(program(given))
    total_ms: dict[str, float] = {}
    for path in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    # Python's events begin with "$".
                    if not event.name.startswith("$"):
                        name = f"{plane.name}: {event.name}"[:100]
                        total_ms[name] = total_ms.get(name, 0) + event.duration_ns / 1e6
    longest = sorted(total_ms.items(), key=lambda item: -item[1])[:20]
    answers.add(
        "profile of three calls of 4 MiB", str(folder), f"{len(total_ms)} events"
    )
    for name, duration_ms in longest:
        answers.add(f"  event {name}", f"{duration_ms:.2f} ms")


def main() -> int:
    """Examines the devices; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file for the answers of rank 0")
    parser.add_argument("--profile", type=Path, help="folder for the profile")
    parser.add_argument(
        "--mib", type=float, nargs="+", default=[1, 25, 100], help="sizes of calls"
    )
    parser.add_argument("--calls", type=int, default=20, help="measured calls")
    parser.add_argument("--steps", type=int, default=20, help="steps of training")
    parser.add_argument(
        "--host-call",
        choices=("host_computation", "callback"),
        default="host_computation",
        help="the way of a call",
    )
    args = parser.parse_args()
    os.environ["JAX_OPTIREDUCE_HOST_CALL"] = args.host_call
    with jo.init() as communicator:
        answers = Answers(communicator.rank)
        answers.add("versions", f"jax {jax.__version__}, {jo.__version__}")
        answers.add("way of a call", args.host_call)
        examine_plugins(answers)
        mesh = make_mesh()
        examine_sums(mesh, answers, args.mib)
        examine_rotation(mesh, answers)
        answers.compare(
            f"{args.steps} steps of SGD equal those with lax.pmean",
            difference(
                train(mesh, args.steps, ours=True), train(mesh, args.steps, ours=False)
            ),
            _TOLERANCE,
        )
        measure(mesh, answers, args.mib, args.calls)
        folder = args.profile or Path(tempfile.mkdtemp(prefix="optireduce-profile-"))
        profile(mesh, answers, folder / f"rank{communicator.rank}")
        answers.add("all comparisons are right", "yes" if answers.right else "NO")
        if args.json and communicator.rank == 0:
            args.json.write_text(json.dumps(answers.rows, indent=2) + "\n")
    return 0 if answers.right else 1


if __name__ == "__main__":
    sys.exit(main())
