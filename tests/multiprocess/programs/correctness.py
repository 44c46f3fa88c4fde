"""Sums of every dtype, over all kinds of groups, compared with NumPy on every rank.

Prints "bits <digest>" of all results that must be equal on all ranks.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import meshes
import numpy as np

import jax_optireduce as jo
from jax_optireduce._native import NAME_BYTES_MAX

DTYPES = ("float32", "bfloat16", "float16", "float64", "int32")
SHAPES = ((), (7,), (33, 65), (1 << 16,), (0, 3))


def check_dtypes() -> list[np.ndarray]:
    """All dtypes and shapes in one call, on whole numbers: the exact sum."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    devices = jax.device_count()
    random = np.random.default_rng(1)
    trees = {
        f"{dtype}{shape}": random.integers(-9, 10, (devices, *shape)).astype(
            jnp.dtype(dtype)
        )
        for dtype, shape in itertools.product(DTYPES, SHAPES)
    }
    given = {name: meshes.spread(mesh, rows) for name, rows in trees.items()}
    program = meshes.mapped(mesh, lambda tree: jo.psum(tree, "dp"))
    results = []
    for _ in range(3):
        totals = program(given)
        for name, rows in trees.items():
            expected = rows.astype(np.float64).sum(0)
            for total in meshes.rows_here(totals[name]).values():
                assert total.dtype == rows.dtype, name
                np.testing.assert_array_equal(total.astype(np.float64), expected, name)
                results.append(total)
    return results


def check_rounding(mode: str) -> list[np.ndarray]:
    """Random values: correct to the precision of the dtype."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    random = np.random.default_rng(2)
    results = []
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        rows = random.normal(size=(jax.device_count(), 40_000))
        rows = rows.astype(jnp.dtype(dtype))
        program = meshes.mapped(mesh, lambda x: jo.pmean(x, "dp", mode=mode))
        means = meshes.rows_here(program(meshes.spread(mesh, rows)))
        precision = 8 * float(jnp.finfo(dtype).eps)
        for mean in means.values():
            np.testing.assert_allclose(
                mean.astype(np.float64),
                rows.astype(np.float64).mean(0),
                rtol=precision,
                atol=precision,
            )
            results.append(mean)
    return results


def check_bounded_mean() -> None:
    """With all ranks alive, equal to the sum divided by the ranks, to the last bit.

    The mean of 16-bit floats is rounded once, the sum and its quotient twice.
    """
    mesh = meshes.make((jax.device_count(),), ("dp",))
    rows = np.random.default_rng(5).normal(size=(jax.device_count(), 4000))

    def both(x: Any) -> Any:
        total = jo.psum(x, "dp", mode="bounded", name="bounded sum")
        mean = jo.pmean(x, "dp", mode="bounded", name="bounded mean")
        return mean, total / jax.device_count()

    for dtype in ("float32", "bfloat16", "float16", "float64"):
        given = meshes.spread(mesh, rows.astype(jnp.dtype(dtype)))
        mean, divided = map(meshes.rows_here, meshes.mapped(mesh, both)(given))
        for device in mean:
            if given.dtype.itemsize > 2:
                assert mean[device].tobytes() == divided[device].tobytes(), dtype
                continue
            precision = 2 * float(jnp.finfo(dtype).eps)
            np.testing.assert_allclose(
                mean[device].astype(np.float64),
                divided[device].astype(np.float64),
                rtol=precision,
                atol=precision,
            )


def check_groups() -> None:
    """Groups along some axes of a mesh: each has its own sum."""
    if jax.device_count() != 4:
        return
    mesh = meshes.make((2, 2), ("a", "b"))
    rows = np.random.default_rng(3).integers(-9, 10, (4, 5)).astype(np.float32)
    given = meshes.spread(mesh, rows)

    def sums(x: Any) -> Any:
        # The process appends the number of the group to the name.
        name = "x" * NAME_BYTES_MAX
        axes = ("a", "b", ("a", "b"), ("b", "a"))
        return [jo.psum(x, which, name=name) for which in axes]

    results = meshes.mapped(mesh, sums)(given)
    cube = rows.reshape(2, 2, 5)
    over_all = cube.sum((0, 1))
    for device in range(4):
        a, b = divmod(device, 2)
        expected = [cube[:, b].sum(0), cube[a].sum(0), over_all, over_all]
        for result, wanted in zip(results, expected, strict=True):
            here = meshes.rows_here(result)
            if device in here:
                np.testing.assert_array_equal(here[device], wanted)


def check_some_devices() -> None:
    """A mesh of half of the devices: the others take no part."""
    half = jax.device_count() // 2
    mesh = meshes.make((half,), ("dp",))
    rows = np.arange(half * 3, dtype=np.float32).reshape(half, 3)
    if any(d.process_index == jax.process_index() for d in mesh.devices.flat):
        program = meshes.mapped(mesh, lambda x: jo.psum(x, "dp"))
        for total in meshes.rows_here(program(meshes.spread(mesh, rows))).values():
            np.testing.assert_array_equal(total, rows.sum(0))


def check_identity() -> None:
    """Calls are numbered, or have the step passed by the program."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    rows = np.ones((jax.device_count(), 3), np.float32)
    steps = np.zeros(jax.device_count(), np.int32)

    def both(x: Any, step: Any) -> Any:
        _, counted = jo.psum(x, "dp", return_stats=True)
        _, stepped = jo.psum(x, "dp", step=step, name="stepped", return_stats=True)
        return counted, stepped

    program = meshes.mapped(mesh, both)
    for call, step in enumerate((0, 5, 1000)):
        counted, stepped = program(
            meshes.spread(mesh, rows), meshes.spread(mesh, steps + step)
        )
        for report, number in ((counted, call), (stepped, step)):
            (sequence, *_) = meshes.rows_here(report.sequence).values()
            (missing, *_) = meshes.rows_here(report.missing_contributions).values()
            assert (int(sequence), float(missing)) == (number, 0.0)


def check_gradients() -> None:
    """A training step in the three forms agrees with the mean of all gradients."""
    mesh = meshes.make((jax.device_count(),), ("dp",))
    rows = np.random.default_rng(4).normal(size=(jax.device_count(), 8))

    def forms(x: Any) -> Any:
        def loss(w: Any) -> Any:
            return (w * x).sum() ** 2

        def loss_of_synced(w: Any) -> Any:
            return loss(jo.sync_in_backward(w, "dp", mode="exact"))

        w = jnp.ones(8)
        gradient = jax.grad(loss)(w)
        link = jo.optax_average_gradients("dp", mode="exact")
        return (
            jo.average_gradients(gradient, "dp", mode="exact"),
            jax.grad(loss_of_synced)(w),
            link.update(gradient, link.init(w))[0],
        )

    expected = (2 * rows.sum(1)[:, None] * rows).mean(0)
    for form in meshes.mapped(mesh, forms)(meshes.spread(mesh, rows)):
        for gradient in meshes.rows_here(form).values():
            np.testing.assert_allclose(gradient, expected, rtol=1e-10)


with jo.init() as communicator:
    results = [*check_dtypes(), *check_rounding("exact")]
    # The comparison of bits requires that no data is late.
    if communicator.options.deadline_s:
        check_bounded_mean()
    check_groups()
    check_some_devices()
    check_identity()
    check_gradients()
    if not communicator.options.faults:
        check_rounding("lossy")
    # Every device holds every result: the set contains each of them once.
    print("bits", *sorted({meshes.digest(result) for result in results}))
