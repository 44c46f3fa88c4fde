"""Measures the overlap of communication with the backward pass.

    python -m jax_optireduce launch -n 2 benchmarks/overlap.py [picture.png]

The model has eight layers of 4 MiB, a bucket each, in `sync_in_backward`. Three
programs take turns: the backward pass alone, the communication alone, and both. The
program prints the medians, the hidden share of the communication, and the times of the
calls of a typical step, from the flight record. The picture needs matplotlib.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_optireduce

_LAYERS = 8
_WIDTH = 1024
# Chosen: a backward pass that takes longer than its communication.
_ROWS = 512
_STEPS = 7
_SPEC = (PartitionSpec(), PartitionSpec("data"))


def _loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for weights in params:
        x = jnp.tanh(x @ weights)
    return jnp.mean(x * x)


def _compute(params: list[jax.Array], x: jax.Array) -> Any:
    return jax.grad(_loss)(params, x)


def _communicate(params: list[jax.Array], _: jax.Array) -> Any:
    return jax_optireduce.average_gradients(params, "data", mode="exact", name="alone")


def _both(params: list[jax.Array], x: jax.Array) -> Any:
    def synced(params: list[jax.Array]) -> jax.Array:
        sync = jax_optireduce.sync_in_backward
        return _loss(sync(params, "data", mode="exact", name="both"), x)

    return jax.grad(synced)(params)


def _programs() -> tuple[dict[str, Callable[..., Any]], tuple[Any, jax.Array]]:
    automatic = (AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=automatic)
    random = np.random.default_rng(0)

    def placed(shape: tuple[int, ...], spec: PartitionSpec) -> jax.Array:
        rows = (random.standard_normal(shape) / np.sqrt(_WIDTH)).astype(np.float32)
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(shape, sharding, lambda at: rows[at])

    params = [placed((_WIDTH, _WIDTH), _SPEC[0]) for _ in range(_LAYERS)]
    x = placed((jax.device_count() * _ROWS, _WIDTH), _SPEC[1])
    functions = {"compute": _compute, "communicate": _communicate, "both": _both}
    return {
        name: jax.jit(
            jax.shard_map(
                function,
                mesh=mesh,
                in_specs=_SPEC,
                out_specs=_SPEC[0],
                check_vma=False,
            )
        )
        for name, function in functions.items()
    }, (params, x)


def _draw(path: str, calls: list[tuple[float, float]], step_ms: float) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415 (needed for the picture only)

    figure, axes = plt.subplots(figsize=(6, 2.2), layout="constrained")
    axes.barh("step", step_ms, color="0.8")
    for bucket, (start, end) in enumerate(calls):
        axes.barh(f"bucket {bucket}", end - start, left=start, color="tab:blue")
    axes.invert_yaxis()
    axes.tick_params(labelsize=7)
    axes.set_xlabel("ms", fontsize=7)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Measures, and prints on rank 0."""
    communicator = jax_optireduce.init(bucket_bytes=4 << 20)
    programs, arguments = _programs()
    for program in programs.values():
        jax.block_until_ready(program(*arguments))
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(_STEPS):
        for name, program in programs.items():
            start = time.monotonic()
            jax.block_until_ready(program(*arguments))
            spans[name].append((start, time.monotonic()))
    if communicator.rank == 0:
        ms = {
            name: 1e3 * statistics.median(end - start for start, end in times)
            for name, times in spans.items()
        }
        hidden = (ms["compute"] + ms["communicate"] - ms["both"]) / ms["communicate"]
        print(", ".join(f"{name} {value:.0f} ms" for name, value in ms.items()))
        print(f"hidden: {hidden:.0%} of the communication")
        start, end = sorted(spans["both"], key=lambda span: span[1] - span[0])[
            _STEPS // 2
        ]
        calls = [
            (1e3 * (begun - start), 1e3 * (begun + call["elapsed_s"] - start))
            for call in communicator.flight_record()
            if start <= (begun := call["started_monotonic_s"]) <= end
        ]
        for bucket, (first, last) in enumerate(calls):
            print(f"bucket {bucket}: {first:.0f} to {last:.0f} ms")
        if len(sys.argv) > 1:
            _draw(sys.argv[1], calls, 1e3 * (end - start))
    jax_optireduce.shutdown()


if __name__ == "__main__":
    main()
