"""Under every transformation of JAX, mode "exact" does what `jax.lax` does.

One table: places in a mesh x transformations x psum and pmean x both values of
check_vma. The values are small whole numbers and the functions polynomials, so sums are
the same bits in any order and results are compared for equality.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import jax_optireduce

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec


@dataclasses.dataclass(frozen=True)
class Place:
    """A mesh, and the axes of the reduction."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    axes: Any

    def mesh(self) -> jax.sharding.Mesh:
        return mesh_of(self.shape, self.names)

    def tuple_of_axes(self) -> tuple[str, ...]:
        return self.axes if isinstance(self.axes, tuple) else (self.axes,)


LINE = Place((4,), ("dp",), "dp")
PLACES = {
    "4": LINE,
    "1": Place((1,), ("dp",), "dp"),
    "2x2, first": Place((2, 2), ("dp", "tp"), "dp"),
    "2x2, both reversed": Place((2, 2), ("dp", "tp"), ("tp", "dp")),
    "2x2x2, middle": Place((2, 2, 2), ("a", "b", "c"), "b"),
    "2x2x2, outer two": Place((2, 2, 2), ("a", "b", "c"), ("a", "c")),
    "2x2x2, all": Place((2, 2, 2), ("a", "b", "c"), ("c", "a", "b")),
    "3 of 8": Place((3,), ("dp",), "dp"),
}

Reduce = Callable[..., Any]


def _value(reduce: Reduce, axes: Any, x: Any) -> Any:
    return reduce({"a": x, "b": (x[0] + 1, x[:, 0] * 2)}, axes)


def _grad(reduce: Reduce, axes: Any, x: Any) -> Any:
    return jax.grad(lambda y: (reduce(y * y, axes) * y).sum())(x)


def _grad_of_one_leaf(reduce: Reduce, axes: Any, x: Any) -> Any:
    def loss(y: Any) -> Any:
        used, _ = reduce((y * y, y + 1), axes)
        return (used * y).sum()

    return jax.grad(loss)(x)


def _second_grad(reduce: Reduce, axes: Any, x: Any) -> Any:
    first = jax.grad(lambda y: (reduce(y * y, axes) * y).sum())
    return jax.grad(lambda y: (first(y) * y).sum())(x)


def _jvp(reduce: Reduce, axes: Any, x: Any) -> Any:
    return jax.jvp(lambda y: reduce({"y": y * y}, axes), (x,), (x + 1,))


def _linearize(reduce: Reduce, axes: Any, x: Any) -> Any:
    value, tangent = jax.linearize(lambda y: reduce(y * y, axes), x)
    return value, tangent(x + 1)


def _vmap(reduce: Reduce, axes: Any, x: Any) -> Any:
    return jax.vmap(lambda y, z: reduce((y, z), axes), in_axes=(0, 1))(x, x)


def _vmap_of_grad(reduce: Reduce, axes: Any, x: Any) -> Any:
    return jax.vmap(jax.grad(lambda y: (reduce(y * y, axes) * y).sum()))(x)


def _named_vmap(reduce: Reduce, axes: Any, x: Any) -> Any:
    both = (*(axes if isinstance(axes, tuple) else (axes,)), "v")
    return jax.vmap(
        lambda y, z: (reduce((y, z), both), reduce(y, "v"), reduce(y, axes)),
        in_axes=(0, None),
        axis_name="v",
    )(x, x)


def _named_vmap_grad(reduce: Reduce, axes: Any, x: Any) -> Any:
    both = ("v", *(axes if isinstance(axes, tuple) else (axes,)))
    loss = jax.grad(lambda y: (reduce(y * y, both) * y).sum())
    return jax.vmap(loss, axis_name="v")(x)


def _remat(reduce: Reduce, axes: Any, x: Any) -> Any:
    block = jax.checkpoint(lambda y: reduce(y * y, axes) * y)
    return jax.grad(lambda y: block(block(y)).sum())(x)


def _scan(reduce: Reduce, axes: Any, x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        total = reduce(row, axes)
        return carry + total * row, total

    return lax.scan(body, x[0], x)


def _scan_grad(reduce: Reduce, axes: Any, x: Any) -> Any:
    def loss(y: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            return carry + reduce(row * row, axes) * row, None

        return lax.scan(body, y[0], y)[0].sum()

    return jax.grad(loss)(x)


def _cond(reduce: Reduce, axes: Any, x: Any) -> Any:
    def taken(y: Any) -> Any:
        return reduce(y, axes)

    def not_taken(y: Any) -> Any:
        return reduce(y * 3, axes)

    positive = reduce(x, axes).sum() > 0
    return lax.cond(positive, taken, not_taken, x), lax.cond(
        ~positive, taken, not_taken, x
    )


def _while(reduce: Reduce, axes: Any, x: Any) -> Any:
    def body(state: Any) -> Any:
        i, y = state
        return i + 1, y + reduce(y, axes)

    return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]


def _inner_jit(reduce: Reduce, axes: Any, x: Any) -> Any:
    inner = jax.jit(lambda y: reduce(y * y, axes))
    return inner(x + inner(x))


def _twice_on_one_line(reduce: Reduce, axes: Any, x: Any) -> Any:
    return [reduce(x, axes) + reduce(2 * x, axes), reduce(x, axes), reduce(-x, axes)]


def _numbers(reduce: Reduce, axes: Any, x: Any) -> Any:
    return reduce({"n": 1, "f": 2.5, "none": None, "empty": (), "x": x}, axes)


def _without_elements(reduce: Reduce, axes: Any, x: Any) -> Any:
    return reduce({"nothing": x[:0], "scalar": x[0, 0], "x": x}, axes)


def _special_values(reduce: Reduce, axes: Any, x: Any) -> Any:
    special = jnp.array([jnp.nan, jnp.inf, -jnp.inf, -0.0])
    return reduce(jnp.where(x[0, 0] > 0, special, 0.0) + 0 * x[0, 0], axes)


# Tried at every place; the other functions depend on the place no more than these.
BASIC = [_value, _grad, _jvp, _vmap]
FURTHER = [
    _grad_of_one_leaf,
    _second_grad,
    _linearize,
    _vmap_of_grad,
    _remat,
    _scan,
    _scan_grad,
    _cond,
    _while,
    _inner_jit,
    _twice_on_one_line,
    _numbers,
    _without_elements,
    _special_values,
]
# Under check_vma=True, `jax.lax.psum` does not accept an axis of a `vmap` together with
# one of the mesh.
NAMED = [_named_vmap, _named_vmap_grad]


def _inputs(place: Place) -> jax.Array:
    """Whole numbers from -2 to 4: one [3, 3] matrix for each device."""
    devices = math.prod(place.shape)
    values = np.random.default_rng(7).integers(-2, 5, (devices, 3, 3))
    return jnp.asarray(values, jnp.float32)


def _on_every_device(function: Callable[[Any], Any], place: Place, *, vma: bool) -> Any:
    """Maps a function of a matrix over the mesh; returns the results of each device."""

    def local(x: Any) -> Any:
        def shown(value: Any) -> Any:
            value = jnp.asarray(value)
            fixed = tuple(set(place.names) - jax.typeof(value).mat.varying)
            return (lax.pcast(value, fixed, to="varying") if vma else value)[None]

        return jax.tree.map(shown, function(x[0]))

    spec = _P(place.names)
    return jax.shard_map(
        local, mesh=place.mesh(), in_specs=spec, out_specs=spec, check_vma=vma
    )


def _assert_same_bits(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def _assert_equal_under(
    transformations: Sequence[Callable[..., Any]], ours: Any, theirs: Any
) -> None:
    for transformation, a, b in zip(transformations, ours, theirs, strict=True):
        try:
            _assert_same_bits(a, b)
        except AssertionError as error:
            name = transformation.__name__.strip("_")
            raise AssertionError(f"under {name}: {error}") from error


def _assert_equal(
    ours: Reduce,
    theirs: Reduce,
    place: Place,
    transformations: Sequence[Callable[..., Any]],
    *,
    vma: bool,
) -> None:
    """Compiles all transformations into one program, and compares their results."""

    def results(reduce: Reduce) -> Any:
        def local(matrix: Any) -> Any:
            return [t(reduce, place.axes, matrix) for t in transformations]

        return jax.jit(_on_every_device(local, place, vma=vma))(_inputs(place))

    _assert_equal_under(transformations, results(ours), results(theirs))


@pytest.mark.parametrize("vma", [True, False], ids=["vma", "no vma"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_psum_equals_lax_everywhere(place, vma):
    transformations = BASIC if vma else [*BASIC, _named_vmap]
    _assert_equal(jax_optireduce.psum, lax.psum, place, transformations, vma=vma)


@pytest.mark.parametrize("vma", [True, False], ids=["vma", "no vma"])
def test_psum_equals_lax_under_every_transformation(vma):
    transformations = FURTHER if vma else [*FURTHER, *NAMED]
    place = PLACES["2x2, first"]
    _assert_equal(jax_optireduce.psum, lax.psum, place, transformations, vma=vma)


@pytest.mark.parametrize("vma", [True, False], ids=["vma", "no vma"])
def test_pmean_equals_lax(vma):
    place = PLACES["2x2x2, outer two"]
    transformations = [*BASIC, _numbers, _scan_grad, _remat]
    _assert_equal(jax_optireduce.pmean, lax.pmean, place, transformations, vma=vma)


def test_named_vmap_with_types_equals_lax_without():
    place = PLACES["2x2, first"]
    ours, theirs = (
        jax.jit(
            _on_every_device(
                lambda m, r=reduce: _named_vmap(r, place.axes, m), place, vma=typed
            )
        )(_inputs(place))
        for reduce, typed in ((jax_optireduce.psum, True), (lax.psum, False))
    )
    _assert_same_bits(ours, theirs)


@pytest.mark.parametrize("vma", [True, False], ids=["vma", "no vma"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_grad_outside_of_shard_map_equals_lax(place, vma):
    x = _inputs(place)
    others = tuple(n for n in place.names if n not in place.tuple_of_axes())

    def gradient(reduce: Reduce) -> Any:
        total = jax.shard_map(
            lambda y: reduce(y * y, place.axes),
            mesh=place.mesh(),
            in_specs=_P(place.names),
            out_specs=_P(others),
            check_vma=vma,
        )
        return jax.jit(jax.grad(lambda y: (total(y) ** 2).sum()))(x)

    _assert_same_bits(gradient(jax_optireduce.psum), gradient(lax.psum))


@pytest.mark.parametrize(
    "vma", [True, pytest.param(False, marks=pytest.mark.long)], ids=["vma", "no vma"]
)
def test_eager_equals_lax(vma):
    place = PLACES["2x2, first"]
    x = _inputs(place)
    for transformation in (_value, _grad):
        ours, theirs = (
            _on_every_device(
                lambda m, r=reduce, t=transformation: t(r, place.axes, m),
                place,
                vma=vma,
            )(x)
            for reduce in (jax_optireduce.psum, lax.psum)
        )
        _assert_same_bits(ours, theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pmap_and_its_grad_equal_lax():
    x = _inputs(LINE)

    def both(reduce: Reduce) -> Any:
        def loss(y: Any) -> Any:
            return (reduce(y * y, "i") * y).sum()

        inside = jax.pmap(lambda y: (reduce(y, "i"), jax.grad(loss)(y)), axis_name="i")
        outside = jax.grad(lambda y: jax.pmap(loss, axis_name="i")(y).sum())
        return inside(x), outside(x)

    _assert_same_bits(both(jax_optireduce.psum), both(lax.psum))


def test_context_mesh_equals_lax():
    x = _inputs(LINE)
    with jax.set_mesh(LINE.mesh()):
        ours, theirs = (
            jax.jit(
                jax.shard_map(
                    lambda y, r=reduce: r(y, "dp"), in_specs=_P("dp"), out_specs=_P()
                )
            )(x)
            for reduce in (jax_optireduce.psum, lax.psum)
        )
    _assert_same_bits(ours, theirs)


@pytest.mark.parametrize("vma", [True, False], ids=["vma", "no vma"])
def test_lossy_without_loss_equals_lax_to_rounding_under_grad_and_vmap(vma):
    place = PLACES["2x2, first"]
    x = _inputs(place)

    def lossy(tree: Any, axes: Any) -> Any:
        return jax_optireduce.psum(tree, axes, mode="lossy")

    transformations = (_value, _grad, _vmap, _remat, _scan)
    ours, theirs = (
        jax.jit(
            _on_every_device(
                lambda m, r=reduce: [t(r, place.axes, m) for t in transformations],
                place,
                vma=vma,
            )
        )(x)
        for reduce in (lossy, lax.psum)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-2)


# ---- With an axis that the compiler shards by itself.


def _partly_manual(function: Callable[[Any], Any], kind: AxisType, *, vma: bool) -> Any:
    """Maps a function of a matrix over "dp", the first of two axes."""
    mesh = jax.make_mesh(
        (2, 2),
        ("dp", "tp"),
        axis_types=(AxisType.Auto, kind),
        devices=jax.devices()[:4],
    )

    def local(x: Any) -> Any:
        def shown(value: Any) -> Any:
            value = jnp.asarray(value)
            fixed = tuple({"dp"} - jax.typeof(value).mat.varying)
            return (lax.pcast(value, fixed, to="varying") if vma else value)[None]

        return jax.tree.map(shown, function(x[0]))

    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=_P("dp"),
        out_specs=_P("dp"),
        axis_names={"dp"},
        check_vma=vma,
    )
    return jax.jit(mapped)


# The automatic axis divides some of the leaves, or none.
@pytest.mark.parametrize(("width", "vma"), [(4, True), (3, True), (4, False)])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_psum_equals_lax_where_some_axes_are_automatic(vma, width, kind):
    transformations = [*BASIC, *FURTHER]
    values = np.random.default_rng(8).integers(-2, 5, (2, width, width))
    x = jnp.asarray(values, jnp.float32)

    def results(reduce: Reduce) -> Any:
        return _partly_manual(
            lambda m: [t(reduce, "dp", m) for t in transformations], kind, vma=vma
        )(x)

    _assert_equal_under(
        transformations, results(jax_optireduce.psum), results(lax.psum)
    )
