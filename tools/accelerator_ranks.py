"""The tasks of one rank, which tools/try_accelerator.py starts.

    python -m jax_optireduce launch -n 2 tools/accelerator_ranks.py FOLDER TASK...

Each comparison and each figure is a line of JSON in FOLDER/rank<i>.jsonl. A collective
of XLA runs between hosts only: NCCL refuses ranks that share a GPU.
"""

import argparse
import contextlib
import faulthandler
import functools
import hashlib
import itertools
import json
import os
import pickle
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce as jo
from jax_optireduce._jax import coordination

MIB = 1 << 20

# Chosen: no data is late, so that the sums of all modes are those of `exact`; a bucket
# is a layer of `overlap`.
PATIENT = {"deadline_s": 30.0, "deadline_max_s": 30.0, "bucket_bytes": 16 * MIB}

# Chosen: a short wait for a dead rank, and longer than a pause of a busy host.
IMPATIENT = {"peer_timeout_s": 3.0}

# Stands for NaN and infinity, which JSON does not have.
NOT_FINITE = 1e30

# Chosen: twice the errors of values in [-1, 1].
WIRE_LIMITS = {"bfloat16": 0.01, "int8": 0.03, "float4": 0.7}

Function = Callable[..., Any]


class Rank:
    """The comparisons and figures of this rank, which is in a session.

    Args:
      folder: for the lines.
      small: whether all sizes are small.
      profile: folder for profiles, or None.
      with_lax: whether collectives of XLA may run between the ranks.
    """

    def __init__(
        self, folder: Path, *, small: bool, profile: Path | None, with_lax: bool
    ) -> None:
        self.small, self.profile, self.with_lax = small, profile, with_lax
        self._lines, self._task = folder / f"rank{jax.process_index()}.jsonl", "start"
        device, versions = jax.local_devices()[0], [jax.__version__, jo.__version__]
        kind = device.device_kind
        self.say("devices", n=jax.device_count(), kind=kind, versions=versions)

    def say(self, name: str, **values: Any) -> None:
        """Adds a line; a comparison has the value `right`."""
        line = {"task": self._task, "name": name, **values}
        with self._lines.open("a") as file:
            file.write(json.dumps(line, default=float) + "\n")

    def run(self, task: str) -> None:
        """Runs a task; an exception is a wrong comparison, and ends the rank."""
        self._task = task
        try:
            TASKS[task](self)
        except Exception as error:
            self.say("no exception", right=False, text=repr(error)[:2000])
            raise

    def check(
        self, name: str, function: Function, rows: Any, wanted: Any, **how: Any
    ) -> None:
        """Compares the result of a program; after an exception the next one runs."""
        limit = how.pop("limit", 0.0)
        try:
            self.compare(name, mapped(function, **how)(placed(rows)), wanted, limit)
        except Exception as error:  # noqa: BLE001 (a report)
            self.say(name, right=False, text=repr(error)[:2000])

    def compare(self, name: str, found: Any, wanted: Any, limit: float = 0.0) -> None:
        """Compares replicated arrays; their bits are to be equal on all ranks."""
        worst, bits = 0.0, hashlib.sha256()
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
        for array, right in pairs:
            for shard in array.addressable_shards:
                own = np.asarray(shard.data)
                bits.update(own.tobytes())
                apart = np.abs(own.astype(np.float64) - np.asarray(right, np.float64))
                apart = np.nan_to_num(apart, nan=NOT_FINITE, posinf=NOT_FINITE)
                worst = max(worst, float(apart.max(initial=0)))
        text = f"largest difference {worst:g}, permitted {limit:g}"
        digest = bits.hexdigest()[:16]
        self.say(name, right=worst <= limit, text=text, bits=digest)

    def total(self, rows: Any) -> Any:
        """Returns the sums of whole numbers: those of lax.psum, or of NumPy."""
        if not self.with_lax:
            return jax.tree.map(lambda x: x.astype(np.float64).sum(0), rows)
        sums = mapped(functools.partial(lax.psum, axis_name="data"))(placed(rows))
        return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), sums)


def mesh(*, partly: bool = False) -> Mesh:
    """Returns the mesh of all devices, with a further axis for `partly`."""
    shape, names = (jax.device_count(),), ("data",)
    if partly:
        shape, names = (*shape, 1), (*names, "model")
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))


def placed(rows: Any, *, whole: bool = False) -> Any:
    """Places row i of each leaf on device i; if `whole`, all of it on all devices."""
    at = NamedSharding(mesh(), P() if whole else P("data"))
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, at, x.__getitem__), rows
    )


def row_of_all(row: Any) -> jax.Array:
    """Places a large row [1, ...] on each device."""
    shape, at = (jax.device_count(), *row.shape[1:]), NamedSharding(mesh(), P("data"))
    return jax.make_array_from_callback(shape, at, lambda _: row)


def mapped(
    function: Function,
    *,
    specs: Any = None,
    partly: bool = False,
    donate: tuple[int, ...] = (),
    check_vma: bool = False,
) -> Function:
    """Returns the program of a function of this device; the results are replicated.

    Args:
      function: of this device's rows of one argument, or with `specs` of its parts.
      specs: of the arguments.
      partly: whether the mesh has a further axis, which the compiler has.
      donate: numbers of the donated arguments.
      check_vma: as of `jax.shard_map`.
    """

    def local(x: Any) -> Any:
        return function(jax.tree.map(lambda x: x[0], x))

    program = jax.shard_map(
        function if specs else local,
        mesh=mesh(partly=partly),
        in_specs=specs or P("data"),
        out_specs=P(),
        axis_names={"data"},
        check_vma=check_vma,
    )
    return jax.jit(program, donate_argnums=donate)


def whole(random: np.random.Generator, *shape: int, dtype: str = "float32") -> Any:
    """Draws a row of small whole numbers for each device: all sums are exact."""
    rows = random.integers(-4, 5, (jax.device_count(), *shape))
    return rows.astype(jnp.dtype(dtype))


def timed(call: Callable[[], Any], calls: int) -> dict[str, float]:
    """Returns times of calls, and of the first one, which may compile, in ms."""
    times_ms = []
    for _ in range(calls + 1):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times_ms.append((time.perf_counter() - begin) * 1e3)
    median, p95 = np.quantile(times_ms[1:], [0.5, 0.95])
    return {"ms": median, "p95_ms": p95, "first_ms": times_ms[0], "calls": calls}


def sums(rank: Rank) -> None:
    """Compares sums of trees and types in all modes, and of all wire formats."""
    random = np.random.default_rng(1)
    for mode in ("exact", "agreed", "bounded"):
        shapes = ((), (7,), (33, 65), (0, 3), (1 << 16,))
        given = {"a tree": {str(shape): whole(random, *shape) for shape in shapes}}
        for dtype in ("bfloat16", "float16", "int32"):
            given[dtype] = whole(random, 300, 70, dtype=dtype)
        for kind, rows in given.items():
            name = f"psum of {kind}, {mode}"
            call = functools.partial(jo.psum, axis_name="data", mode=mode, name=name)
            rank.check(name, call, rows, rank.total(rows))
    rows = random.uniform(-1, 1, (jax.device_count(), 50_000)).astype(np.float32)
    for wire, limit in WIRE_LIMITS.items():
        name = f"pmean, wire format {wire}"
        mean = functools.partial(
            jo.pmean, axis_name="data", mode="exact", wire_format=wire, name=name
        )
        rank.check(name, mean, rows, rows.mean(0), limit=limit)

    for name in ("lossy pmean with step", "lossy pmean, counted"):

        def lossy(x: Any, name: str = name) -> Any:
            # Without a step the number of the call is taken on the host.
            step = None if "counted" in name else (x[0] * 0).astype(jnp.int32)
            return jo.pmean(x, "data", mode="lossy", name=name, step=step)

        rank.check(name, lossy, rows, rows.mean(0), limit=1e-4)
    rows = whole(random, 1000)
    for name, (function, wanted, how) in programs_of(rank, rows).items():
        rank.check(name, function, rows, wanted, **how)


def programs_of(rank: Rank, rows: Any) -> dict[str, tuple[Function, Any, dict]]:
    """Returns programs around calls: function, result, arguments of `mapped`."""
    total, mean, n = rank.total(rows), rows.mean(0), jax.device_count()
    call = functools.partial(jo.psum, axis_name="data")
    average = functools.partial(jo.average_gradients, axis_name="data", mode="bounded")

    def synced(x: Any) -> Any:
        return jax.grad(
            lambda w: jnp.sum(jo.sync_in_backward(w, "data", mode="exact") * x)
        )(jnp.ones(x.shape, jnp.float32))

    def scanned(x: Any) -> Any:
        def body(before: Any, i: Any) -> tuple[Any, None]:
            return before + call(x * (i + 1), name="scan"), None

        return lax.scan(body, jnp.zeros_like(x), jnp.arange(5.0))[0]

    def branched(x: Any) -> Any:
        return lax.cond(n + 0 * x[0] > 0, lambda x: call(x, name="branch"), abs, x)

    def chained(x: Any) -> Any:
        return functools.reduce(
            lambda y, i: call(x + 0 * y, name=f"chain {i}"), range(4), x
        )

    def two(x: Any) -> Any:
        return call(x, name="one"), call(-x, name="two")

    def slope(x: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(call(x, name="gradient") ** 2))(x)

    def drained(x: Any) -> Any:
        own = x
        for mode in ("exact", "agreed", "bounded", "lossy"):
            how: Any = {"mode": mode, "name": f"drained {mode}"}
            own = jo.average_gradients(own, "data", **how)
            own = own + jo.drain(own, "data", **how)
        return own

    def counted(x: Any) -> Any:
        own, stats = average(x, name="counted", return_stats=True)
        return own, stats.missing_contributions, stats.live_processes

    near = {"limit": 1e-6}
    return {
        "psum": (call, total, {}),
        "psum, some axes manual": (call, total, {"partly": True}),
        "psum, donated": (call, total, {"donate": (0,)}),
        # As with lax.psum, the cotangents of all ranks are summed.
        "gradient through psum": (slope, 2.0 * n * total, {}),
        "sync_in_backward": (synced, mean, {"check_vma": True, **near}),
        "psum in lax.scan": (scanned, 15.0 * total, {}),
        "psum in lax.cond": (branched, total, {}),
        "two independent calls": (two, (total, -total), {}),
        "four calls, each after the other": (chained, total, {}),
        "drain without late data": (drained, mean, {"limit": 1e-4}),
        "resync": (lambda x: jo.resync(x, "data"), mean, near),
        "statistics": (counted, (mean, 0.0, jax.process_count()), near),
    }


def train(rank: Rank) -> None:
    """Trains a small network by SGD, and compares it with NumPy, in float64."""
    steps, width, random = 10 if rank.small else 50, 64, np.random.default_rng(3)
    shapes = {"down": (width, 4 * width), "up": (4 * width, width), "bias": 4 * width}
    params = {k: random.normal(size=shape, scale=0.1) for k, shape in shapes.items()}
    batches = random.normal(size=(jax.device_count(), 16, width))
    wanted, x = dict(params), batches.reshape(-1, width)
    for _ in range(steps):
        hidden = np.tanh(x @ wanted["down"] + wanted["bias"])
        error = 2 * (hidden @ wanted["up"] - x) / x.size
        before = (error @ wanted["up"].T) * (1 - hidden**2)
        slopes = {"up": hidden.T @ error, "down": x.T @ before, "bias": before.sum(0)}
        wanted = {k: wanted[k] - 0.1 * slopes[k] for k in wanted}

    def loss_of(p: Any, x: Any) -> Any:
        return jnp.mean((x - jnp.tanh(x @ p["down"] + p["bias"]) @ p["up"]) ** 2)

    def step(p: Any, x: Any, mode: Any) -> Any:
        own = jax.grad(loss_of)(p, x[0])
        own = jo.average_gradients(own, "data", mode=mode, name=f"SGD {mode}")
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, own)

    given = placed(batches.astype(np.float32))
    for mode in ("exact", "bounded"):
        program = mapped(
            functools.partial(step, mode=mode), specs=(P(), P("data")), donate=(0,)
        )
        p = placed({k: v.astype(np.float32) for k, v in params.items()}, whole=True)
        for _ in range(steps):
            p = program(p, given)
        rank.compare(f"{steps} steps of SGD, {mode}", p, wanted, 1e-4)


def stress(rank: Rank) -> None:
    """Makes calls of changing sizes while a thread copies to the device."""
    calls, largest = (60, 10) if rank.small else (300, 14)
    random, n, ended = np.random.default_rng(5), jax.device_count(), threading.Event()

    def copy() -> None:
        block, device = np.ones(MIB, np.float32), jax.local_devices()[0]
        while not ended.wait(0.002):
            jax.block_until_ready(jax.device_put(block, device))

    def error(x: Any) -> Any:
        found = jo.psum(x, "data", name="stress")
        return jnp.max(jnp.abs(found - n * (n + 1) / 2))

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        program, ranks = mapped(error), np.arange(1, n + 1, dtype=np.float32)[:, None]
        sizes = [int(4 ** (0.85 * i)) for i in range(largest)]
        blocks = [placed(np.tile(ranks, size)) for size in sizes]
        errors = [program(blocks[random.integers(largest)]) for _ in range(calls)]
        rank.compare("calls of changing sizes", errors, [0.0] * calls)
    finally:
        ended.set()
        thread.join()


def times(rank: Rank) -> None:
    """Measures calls by size, the two copies alone, and a program without a call."""
    sizes = {64 << 10: 60, MIB: 40, 16 * MIB: 15, 64 * MIB: 8, 256 * MIB: 5}
    if rank.small:
        sizes = {64 << 10: 10, MIB: 5}
    n = jax.device_count()
    for size, calls in sizes.items():
        kib, row = size // 1024, np.ones((1, size // 4), np.float32)
        x = row_of_all(row)
        functions = {"call": functools.partial(jo.psum, axis_name="data")}
        if rank.with_lax:
            functions["lax.psum"] = functools.partial(lax.psum, axis_name="data")
        functions["no call"] = lambda x: x + 1
        for name, function in functions.items():
            program = functools.partial(mapped(function), x)
            rank.say(name, kib=kib, **timed(program, calls))
            if name == "call":
                rank.compare(f"call of {kib} KiB", program(), row[0] * n)
        there = x.addressable_data(0)
        here = jax.device_put(there, there.sharding.with_memory_kind("pinned_host"))
        down = functools.partial(jax.device_put, there, here.sharding)
        up = functools.partial(jax.device_put, here, there.sharding)
        rank.say("copy to the host", kib=kib, **timed(down, calls))
        rank.say("copy to the device", kib=kib, **timed(up, calls))


def slopes_of(params: Any, x: Any) -> Any:
    """Returns the gradients of the layers of a network."""

    def loss(params: Any) -> Any:
        y = x[0]
        for w in params:
            y = jnp.tanh(y @ w)
        return jnp.mean(y * y)

    return jax.grad(loss)(params)


def in_order(params: Any, x: Any) -> list[Any]:
    """Makes a call for each gradient after the call before, as the backward pass."""
    slopes = slopes_of(params, x)
    results, last = list(slopes), None
    for i in reversed(range(len(slopes))):
        own = slopes[i]
        # Through an operation of the device, or XLA joins the calls.
        if last is not None:
            own = own + 0 * last.ravel()[0]
        name = f"in order {i}"
        results[i] = last = jo.pmean(own, "data", mode="exact", name=name)
    return results


def overlap(rank: Rank) -> None:
    """Measures backward passes with calls, beside computation and calls alone."""
    on_cpu = jax.default_backend() == "cpu"
    layers, width, batch = (3, 256, 128) if on_cpu else (6, 2048, 32768)
    random = np.random.default_rng(7)
    draw = functools.partial(random.standard_normal, dtype=np.float32)
    scale = np.float32(width**-0.5)
    params = placed([draw((width, width)) * scale for _ in range(layers)], whole=True)
    x = row_of_all(draw((1, batch, width)))
    mean = functools.partial(jo.pmean, axis_name="data", mode="exact")
    functions = {
        "computation": slopes_of,
        # A value of x: the copies of constants would be made once.
        "calls": lambda params, x: [mean(w + 0 * x[0, 0, 0]) for w in params],
        "joined": lambda params, x: [mean(own) for own in slopes_of(params, x)],
        "in order": in_order,
        "begin and end": lambda params, x: jo.end(
            jo.begin(slopes_of(params, x), "data", mode="exact", name="begun")
        ),
    }
    ms, right = {}, None
    for name, function in functions.items():
        program = functools.partial(mapped(function, specs=(P(), P("data"))), params, x)
        ms[name] = timed(program, 3 if rank.small else 6)["ms"]
        with contextlib.ExitStack() as profile:
            # Rank 0 alone: CUDA's profiler may refuse a second process.
            if rank.profile is not None and jax.process_index() == 0:
                folder = str(rank.profile / name.replace(" ", "-"))
                profile.enter_context(jax.profiler.trace(folder))
            found = jax.block_until_ready(program())
        if name not in ("computation", "calls"):
            right = right or [np.asarray(own.addressable_data(0)) for own in found]
            rank.compare(f"gradients, calls {name}", found, right, 1e-5)
    alone_ms = ms.pop("computation"), ms.pop("calls")
    hidden = {k: (sum(alone_ms) - v) / min(alone_ms) for k, v in ms.items()}
    text = "computation {:.1f} ms, calls {:.1f} ms".format(*alone_ms)
    text += ", hidden: " + ", ".join(f"{k} {v:.0%}" for k, v in hidden.items())
    rank.say("overlap", text=text, alone_ms=alone_ms, both_ms=ms, hidden=hidden)


def cached(rank: Rank) -> None:
    """Runs a program that a second process takes from JAX's cache on disk."""
    hits: list[str] = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if "cache_hits" in event else None
    )
    rows, begin = whole(np.random.default_rng(9), 4096), time.perf_counter()
    rank.check("sums", lambda x: jo.psum(x, "data"), rows, rows.sum(0))
    text = f"{(time.perf_counter() - begin) * 1e3:.0f} ms, {len(hits)} hits"
    rank.say("first call", text=text, hits=len(hits))


def dead(rank: Rank, mode: Any) -> None:
    """Lets the last rank die, which a mode removes (bounded) or names (exact)."""

    def step(x: Any) -> Any:
        own, stats = jo.average_gradients(x, "data", mode=mode, return_stats=True)
        return jnp.isfinite(own).all() * stats.live_processes

    n, end, times_ms, after = jax.process_count(), time.monotonic() + 25, [0.0], 0
    program, x = mapped(step), placed(np.ones((jax.device_count(), 50_000), np.float32))
    try:
        with jo.typed_errors():
            while after < 50 and time.monotonic() < end:
                if len(times_ms) == 10 and jax.process_index() == n - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                begin = time.perf_counter()
                live = int(program(x).addressable_data(0))
                times_ms.append((time.perf_counter() - begin) * 1e3)
                after += live == n - 1
                time.sleep(0.02)
        right, slowest_ms = mode == "bounded" and after == 50, max(times_ms[2:])
        text = f"{after} finite steps without it, longest step {slowest_ms:.0f} ms"
    except jo.CollectiveError as error:
        named = isinstance(error, jo.PeerLost) and tuple(error.ranks) == (n - 1,)
        right, text = mode == "exact" and named, f"{error!r}, {error.__cause__!r}"
    rank.say(f"a dead rank, {mode}", right=right, text=text[:2000])


def share_device() -> None:
    """Replaces JAX's collectives of host arrays: NCCL refuses ranks on one GPU."""
    numbers = itertools.count()

    def exchange(value: Any) -> list[Any]:
        label, sent = f"try_accelerator/{next(numbers)}", pickle.dumps(value)
        found = coordination.exchange(label, sent, 120.0)
        return [pickle.loads(one) for one in found]  # noqa: S301 (its own ranks)

    def gather(tree: Any) -> Any:
        return jax.tree.map(lambda *rows: np.stack(rows), *exchange(tree))

    multihost_utils.sync_global_devices = exchange
    multihost_utils.process_allgather = gather
    multihost_utils.broadcast_one_to_all = lambda tree, **_: exchange(tree)[0]


def finetune(folder: Path, *, small: bool) -> None:
    """Runs examples/finetune_gpt2.py, which makes a session of its own."""
    share_device()
    examples = Path(__file__).parent.parent / "examples"
    batch = 4 * int(os.environ["JAX_NUM_PROCESSES"])
    steps, length = (6, 32) if small else (40, 64)
    words = f"--mode exact --steps {steps} --length {length} --batch {batch}".split()
    sys.argv = ["finetune_gpt2.py", *words, "--output", str(folder / "model")]
    sys.path.insert(0, str(examples))
    runpy.run_path(str(examples / sys.argv[0]), run_name="__main__")


TASKS: dict[str, Callable[[Rank], None]] = {
    "sums": sums,
    "train": train,
    "stress": stress,
    "times": times,
    "overlap": overlap,
    "cached": cached,
    "dead-bounded": functools.partial(dead, mode="bounded"),
    "dead-exact": functools.partial(dead, mode="exact"),
}


def main() -> None:
    """Runs tasks of this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("tasks", nargs="+", choices=[*TASKS, "finetune"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--stacks-after", type=float, help="seconds")
    args = parser.parse_args()
    if args.stacks_after:  # The stacks of a rank that hangs.
        faulthandler.dump_traceback_later(args.stacks_after)
    if args.tasks == ["finetune"]:
        finetune(args.folder, small=args.small)
        return
    dies = any(task.startswith("dead") for task in args.tasks)
    with jo.init(**(IMPATIENT if dies else PATIENT)):
        rank = Rank(args.folder, small=args.small, profile=args.profile, with_lax=False)
        for task in args.tasks:
            rank.run(task)


if __name__ == "__main__":
    main()
