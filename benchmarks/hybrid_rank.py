"""A process of `hybrid.py`: `python benchmarks/hybrid_rank.py STEPS WIDTH`.

Prints a line of JSON for each form of the step.
"""

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_optireduce

LAYERS, BATCH = 4, 16
WARM_UP = 3

SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")

SPECS = {
    "up": [P(None, "fast")] * LAYERS,
    "down": [P("fast", None)] * LAYERS,
    # Whole on each device.
    "bias": [P()] * LAYERS,
    "scale": [P()] * LAYERS,
}
EVERYWHERE = jax.tree.map(lambda _: P(), SPECS, is_leaf=lambda x: isinstance(x, P))

Average = Callable[[Any], tuple[Any, Any]]


def loss_of(params: Any, x: jax.Array) -> jax.Array:
    """Returns the loss of a batch, float32 [batch, width]."""
    for up, down, bias, scale in zip(*(params[n] for n in SPECS), strict=True):
        x = x + scale * (jnp.tanh(x @ up + bias) @ down)
    return jnp.mean(x**2)


def parameters(width: int) -> Any:
    """Returns the initial parameters."""
    draw = np.random.default_rng(0)

    def matrix() -> np.ndarray:
        return draw.standard_normal((width, width), np.float32) / width

    return {
        "up": [matrix() for _ in range(LAYERS)],
        "down": [matrix() for _ in range(LAYERS)],
        "bias": [np.zeros(width, np.float32) for _ in range(LAYERS)],
        "scale": [np.ones((), np.float32) for _ in range(LAYERS)],
    }


def stepper(mesh: jax.sharding.Mesh, average: Average, *, sharded: bool) -> Any:
    """Returns a jitted step (parameters, batch) -> (parameters, late share)."""

    def step(params: Any, x: jax.Array) -> Any:
        gradients, late = average(jax.grad(loss_of)(params, x))
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)
        return params, late

    rows = P(("slow", "fast"))
    manual = {"axis_names": {"slow"}} if sharded else {}
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(P(), P("slow") if sharded else rows),
        out_specs=P(),
        check_vma=False,
        **manual,
    )
    at = functools.partial(NamedSharding, mesh)
    specs = SPECS if sharded else EVERYWHERE
    shardings = jax.tree.map(at, specs, is_leaf=lambda x: isinstance(x, P))
    return jax.jit(
        mapped,
        in_shardings=(shardings, at(rows)),
        out_shardings=(shardings, at(P())),
        donate_argnums=0,
    )


def forms() -> dict[tuple[str, str], Average]:
    """Returns the averages, by form of the parameters and name."""
    axes = ("slow", "fast")

    def xla(names: Any) -> Average:
        return lambda tree: (lax.pmean(tree, names), jnp.zeros(()))

    def ours(names: Any, mode: str, **more: Any) -> Average:
        def average(tree: Any) -> tuple[Any, Any]:
            tree, report = jax_optireduce.average_gradients(
                tree, names, mode=mode, return_stats=True, **more
            )
            return tree, report.missing_contributions + report.missing_results

        return average

    none = lambda tree: (tree, jnp.zeros(()))  # noqa: E731 (as the others)
    found: dict[tuple[str, str], Average] = {
        ("sharded", "`lax.pmean`"): xla("slow"),
        ("copied", "`lax.pmean`"): xla(axes),
        ("sharded", "computation"): none,
        ("copied", "computation"): none,
    }
    for mode in ("exact", "bounded"):
        call = f"`{mode}`"
        found["sharded", call] = ours("slow", mode, specs=SPECS, name=f"s {mode}")
        found["copied", call] = ours(axes, mode, name=f"c {mode}")
        fast = ours(axes, mode, fast_axis="fast", name=f"f {mode}")
        found["copied", f"{call}, `fast_axis`"] = fast
    return dict(sorted(found.items(), key=lambda item: item[0][0], reverse=True))


def main() -> None:
    """Runs the steps, and prints the lines."""
    steps, width = int(sys.argv[1]), int(sys.argv[2])
    jax_optireduce.init()
    mesh = jax.make_mesh(
        (jax.process_count(), jax.local_device_count()),
        ("slow", "fast"),
        axis_types=(AxisType.Auto,) * 2,
    )
    rows = NamedSharding(mesh, P(("slow", "fast")))
    x = np.random.default_rng(1).standard_normal((BATCH, width)).astype(np.float32)
    batch = jax.make_array_from_callback(x.shape, rows, lambda at: x[at])
    averages = forms()
    programs = {
        form: stepper(mesh, average, sharded=form[0] == "sharded")
        for form, average in averages.items()
    }
    host = parameters(width)

    def placed(form: tuple[str, str]) -> Any:
        specs = SPECS if form[0] == "sharded" else EVERYWHERE
        return jax.tree.map(
            lambda spec, value: jax.make_array_from_callback(
                value.shape, NamedSharding(mesh, spec), lambda at: value[at]
            ),
            specs,
            host,
            is_leaf=lambda x: isinstance(x, P),
        )

    params = {form: placed(form) for form in programs}
    times: dict[Any, list[float]] = {form: [] for form in programs}
    sent, late = dict.fromkeys(programs, 0), dict.fromkeys(programs, 0.0)
    for number in range(WARM_UP + steps):
        for form, program in programs.items():
            before, begin = int(SENT.read_text()), time.perf_counter()
            params[form], share = program(params[form], batch)
            jax.block_until_ready(params[form])
            if number >= WARM_UP:
                times[form].append(time.perf_counter() - begin)
                sent[form] += int(SENT.read_text()) - before
                late[form] += float(share.addressable_data(0))
    for form in programs:
        line = {
            "parameters": form[0],
            "average": form[1],
            "step_s": statistics.median(times[form]),
            "sent_bytes": sent[form] / steps,
            "late": late[form] / steps,
            "gradient_bytes": sum(x.nbytes for x in jax.tree.leaves(host)),
        }
        if jax.process_index() == 0:
            print(json.dumps(line), flush=True)
    jax_optireduce.shutdown()


if __name__ == "__main__":
    main()
