"""`psum_scatter` and `all_gather` have the bits and derivatives of `jax.lax`."""

import functools
import re
from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from device_meshes import mesh_of
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec

import jax_optireduce
from jax_optireduce import AxisError, UsageError

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
_VMA = pytest.mark.parametrize("vma", [True, False], ids=["vma", "no vma"])
_SUMMED = ("float32", "bfloat16", "float16", "float64", "int32")
_GATHERED = (
    *_SUMMED,
    "bool",
    "int8",
    "uint16",
    "int64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
)


def _mesh(world_size: int) -> jax.sharding.Mesh:
    return mesh_of((world_size,), ("dp",))


def _mapped(
    function: Callable[..., Any], *args: Any, world_size: int = 4, vma: bool = True
) -> Any:
    """Runs a function of each device's row; returns the results by device."""
    mapped = jax.shard_map(
        lambda *rows: jax.tree.map(
            lambda y: y[None], function(*jax.tree.map(lambda x: x[0], rows))
        ),
        mesh=_mesh(world_size),
        in_specs=_P("dp"),
        out_specs=_P("dp"),
        check_vma=vma,
    )
    return jax.jit(mapped)(*args)


def _assert_same_bits(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _values(world_size: int, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    random = np.random.default_rng(seed)
    return jnp.asarray(random.integers(-8, 9, (world_size, *shape)), dtype)


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    leaves=st.lists(
        st.tuples(
            st.lists(st.integers(1, 3), min_size=1, max_size=3),
            st.sampled_from(_SUMMED),
        ),
        min_size=1,
        max_size=4,
    ),
    world_size=st.integers(1, 8),
    place=st.integers(0, 2),
    tiled=st.booleans(),
    vma=st.booleans(),
    mode=st.sampled_from(("exact", "agreed", "bounded")),
    seed=st.integers(0, 2**31),
)
def test_any_tree_is_scattered_as_by_lax(
    leaves, world_size, place, tiled, vma, mode, seed
):
    dimension = min(place, *(len(shape) - 1 for shape, _ in leaves))
    with jax.enable_x64():
        tree = []
        for i, (shape, dtype) in enumerate(leaves):
            divided = list(shape)
            divided[dimension] = world_size * (shape[dimension] if tiled else 1)
            tree.append(_values(world_size, tuple(divided), dtype, seed + i))
        how = {"scatter_dimension": dimension, "tiled": tiled}
        ours = functools.partial(jax_optireduce.psum_scatter, mode=mode, **how)
        _assert_same_bits(
            _mapped(lambda t: ours(t, "dp"), tree, world_size=world_size, vma=vma),
            _mapped(
                lambda t: lax.psum_scatter(t, "dp", **how),
                tree,
                world_size=world_size,
                vma=vma,
            ),
        )


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    leaves=st.lists(
        st.tuples(st.lists(st.integers(1, 3), max_size=3), st.sampled_from(_GATHERED)),
        min_size=1,
        max_size=4,
    ),
    world_size=st.integers(1, 8),
    place=st.integers(0, 2),
    tiled=st.booleans(),
    vma=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_tree_is_gathered_as_by_lax(leaves, world_size, place, tiled, vma, seed):
    shapes = [shape or ([2] if tiled else shape) for shape, _ in leaves]
    most = min(len(shape) - (1 if tiled else 0) for shape in shapes)
    how = {"axis": min(place, most), "tiled": tiled}
    with jax.enable_x64():
        tree = [
            _values(world_size, tuple(shape), dtype, seed + i)
            for i, (shape, (_, dtype)) in enumerate(zip(shapes, leaves, strict=True))
        ]
        _assert_same_bits(
            _mapped(
                lambda t: jax_optireduce.all_gather(t, "dp", **how),
                tree,
                world_size=world_size,
                vma=vma,
            ),
            _mapped(
                lambda t: lax.all_gather(t, "dp", **how),
                tree,
                world_size=world_size,
                vma=vma,
            ),
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_gathered_floats_keep_their_bits(dtype):
    with jax.enable_x64():
        width = np.dtype(dtype).itemsize
        random = np.random.default_rng(1)
        # NaN of any payload, infinities, -0.0 and subnormal numbers are among them.
        bits = random.integers(0, 256, (4, 4096 * width), np.uint8)
        special = np.array([np.nan, -np.nan, np.inf, -0.0, 0.0], dtype)
        rows = bits.view(np.dtype(dtype)).copy()
        rows[:, :5] = special
        gathered = _mapped(lambda x: jax_optireduce.all_gather(x, "dp"), rows)
        assert np.asarray(gathered).tobytes() == rows.tobytes() * 4


@_VMA
def test_gathered_values_may_be_typed_as_equal_on_all_ranks(vma):
    mapped = jax.shard_map(
        lambda x: jax_optireduce.all_gather(x, "dp", tiled=True, to="invarying"),
        mesh=_mesh(4),
        in_specs=_P("dp"),
        out_specs=_P(),
        check_vma=vma,
    )
    x = jnp.arange(8.0)
    np.testing.assert_array_equal(jax.jit(mapped)(x), x)


def test_axes_of_any_order_and_interleaved_devices_find_their_parts():
    devices = np.array(jax.devices()).reshape(4, 2)[::-1]
    mesh = jax.sharding.Mesh(devices, ("a", "b"))
    x = np.arange(8 * 16, dtype=np.float32).reshape(8, 16) % 23

    def run(scatter: Any, gather: Any, axes: Any, size: int) -> Any:
        def local(row: jax.Array) -> Any:
            part = scatter(row[0, : 2 * size], axes, tiled=True)
            return part[None], gather(part, axes)[None]

        return jax.jit(
            jax.shard_map(
                local, mesh=mesh, in_specs=_P(("a", "b")), out_specs=_P(("a", "b"))
            )
        )(x)

    for axes, size in (("a", 4), ("b", 2), (("b", "a"), 8), (("a", "b"), 8)):
        _assert_same_bits(
            run(jax_optireduce.psum_scatter, jax_optireduce.all_gather, axes, size),
            run(lax.psum_scatter, lax.all_gather, axes, size),
        )


# --- Transformations -----------------------------------------------------------------


@_VMA
@pytest.mark.parametrize("stage", ["scatter", "gather"])
@pytest.mark.parametrize("tiled", [True, False])
def test_gradient_is_that_of_lax(stage, tiled, vma):
    x = _values(4, (4, 8), "float32", 3)

    def gradient(library: Any) -> Any:
        def loss(row: jax.Array) -> jax.Array:
            if stage == "scatter":
                y = library.psum_scatter(row, "dp", tiled=tiled)
            else:
                y = library.all_gather(row, "dp", axis=1, tiled=tiled)
            return (y * (1 + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape))).sum()

        return _mapped(jax.grad(loss), x, vma=vma)

    _assert_same_bits(gradient(jax_optireduce), gradient(lax))


@_VMA
def test_forward_derivative_is_that_of_lax(vma):
    x, t = _values(4, (4, 8), "float32", 3), _values(4, (4, 8), "float32", 4)

    def derivative(library: Any) -> Any:
        def both(row: jax.Array) -> Any:
            part = library.psum_scatter(row, "dp", scatter_dimension=1, tiled=True)
            return library.all_gather(part * part, "dp")

        return _mapped(lambda x, t: jax.jvp(both, (x,), (t,)), x, t, vma=vma)

    _assert_same_bits(derivative(jax_optireduce), derivative(lax))


@pytest.mark.parametrize("vma", [True, False])
def test_gradient_of_an_equal_gather_is_the_own_part(vma):
    x = jnp.arange(8.0)

    def loss(x: jax.Array) -> jax.Array:
        y = jax_optireduce.all_gather(x, "dp", tiled=True, to="invarying")
        return (y * jnp.arange(8.0)).sum()

    mapped = jax.shard_map(
        jax.grad(loss),
        mesh=_mesh(4),
        in_specs=_P("dp"),
        out_specs=_P("dp"),
        check_vma=vma,
    )
    np.testing.assert_array_equal(jax.jit(mapped)(x), jnp.arange(8.0))


def test_batches_scans_and_branches_give_the_bits_of_lax():
    x = _values(4, (3, 4, 5), "float32", 5)

    def program(library: Any) -> Any:
        def both(row: jax.Array) -> jax.Array:
            part = library.psum_scatter(row, "dp")
            return library.all_gather(part, "dp", axis=0)

        def local(rows: jax.Array) -> Any:
            batched = jax.vmap(both)(rows)
            # JAX 0.10 fails to batch its own along the last axis.
            last = rows.transpose(1, 2, 0) if library is jax_optireduce else rows
            in_axis = last.ndim - 1 if last is not rows else 0
            batched_last = jax.vmap(both, in_axes=in_axis, out_axes=1)(last)
            _, scanned = lax.scan(lambda c, row: (c, both(row)), 0, rows)
            taken = lax.cond(rows.size > 0, both, lambda row: row, rows[0])
            return batched, batched_last, scanned, jax.checkpoint(both)(taken)

        return _mapped(local, x)

    _assert_same_bits(program(jax_optireduce), program(lax))


def test_axis_of_a_vmap_is_scattered_and_gathered_locally():
    x = _values(4, (4, 3), "float32", 6)

    def program(library: Any) -> Any:
        def local(row: jax.Array) -> Any:
            part = library.psum_scatter(row, "v")
            return part, library.all_gather(part, "v")

        return jax.jit(jax.vmap(local, axis_name="v"))(x)

    _assert_same_bits(program(jax_optireduce), program(lax))


def test_pmap_gives_the_bits_of_lax():
    x = _values(8, (8, 3), "float32", 7)

    def program(library: Any) -> Any:
        def local(row: jax.Array) -> Any:
            part = library.psum_scatter(row, "d")
            return part, library.all_gather(part, "d")

        return jax.pmap(local, axis_name="d")(x)

    _assert_same_bits(program(jax_optireduce), program(lax))


@_VMA
def test_sharded_optimizer_trains_as_with_lax(vma):
    random = np.random.default_rng(10)
    x = jnp.asarray(random.integers(-1, 2, (4, 16, 8)), jnp.float32)
    y = jnp.asarray(random.integers(-2, 3, (4, 16)), jnp.float32)
    optimizer = optax.sgd(2.0**-6, momentum=0.5)

    def train(library: Any, steps: int, **mode: Any) -> Any:
        def step(carry: Any, _: Any, x: jax.Array, y: jax.Array) -> Any:
            part, state = carry
            w = library.all_gather(part, "dp", tiled=True)
            g = jax.grad(lambda w: jnp.sum((x @ w - y) ** 2))(w)
            g = library.psum_scatter(g, "dp", tiled=True, **mode)
            updates, state = optimizer.update(g, state, part)
            return (optax.apply_updates(part, updates), state), part.sum()

        def local(x: jax.Array, y: jax.Array) -> Any:
            part = 0 * x[0, :2]
            carry = part, optimizer.init(part)
            return lax.scan(
                functools.partial(step, x=x, y=y), carry, None, length=steps
            )

        return _mapped(local, x, y, vma=vma)

    for mode in ("exact", "bounded"):
        # The numbers of two steps are exact in float32, whatever the order of the sum.
        _assert_same_bits(train(jax_optireduce, 2, mode=mode), train(lax, 2))
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5),
            train(jax_optireduce, 12, mode=mode),
            train(lax, 12),
        )


@pytest.mark.parametrize("library", [jax_optireduce, lax], ids=["ours", "lax"])
@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_stages_around_a_sum_across_groups_are_a_sum_over_both_axes(library, mode):
    mesh = mesh_of((4, 2), ("slow", "fast"))
    x = _values(8, (6, 5), "float32", 11)

    def mapped(function: Any) -> Any:
        spec = _P(("slow", "fast"))
        local = jax.shard_map(
            lambda row: function(row[0])[None],
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
            check_vma=False,
        )
        return jax.jit(local)(x)

    def psum_2d(row: jax.Array) -> jax.Array:
        part = library.psum_scatter(row, "fast", tiled=True)
        part = jax_optireduce.psum(part, "slow", mode=mode)
        return library.all_gather(part, "fast", tiled=True)

    expected = mapped(lambda row: lax.psum(row, ("slow", "fast")))
    _assert_same_bits(mapped(psum_2d), expected)


# --- Modes and arguments -------------------------------------------------------------


def test_lossy_parts_are_sums_without_loss():
    x = _values(4, (4, 5000), "float32", 8)
    ours = _mapped(lambda r: jax_optireduce.psum_scatter(r, "dp", mode="lossy"), x)
    theirs = _mapped(lambda r: lax.psum_scatter(r, "dp"), x)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_drain_of_a_scattered_collective_has_the_shape_of_a_part():
    x = _values(4, (8, 3), "float32", 9)

    def local(row: jax.Array) -> Any:
        how = {"name": "g", "mode": "bounded"}
        part = jax_optireduce.psum_scatter(row, "dp", tiled=True, **how)
        rest = jax_optireduce.drain(
            {"row": row, "part": jnp.tile(part, (4, 1))}["row"],
            "dp",
            mean=False,
            scatter_dimension=0,
            tiled=True,
            **how,
        )
        return part, rest

    part, rest = _mapped(local, x)
    assert part.shape == rest.shape == (4, 2, 3)
    assert not np.asarray(rest).any()


@pytest.mark.parametrize("mode", ["bounded", "agreed", "lossy"])
def test_gather_in_a_mode_that_may_lack_data_is_refused_with_the_reason(mode):
    with pytest.raises(UsageError, match=re.escape(f"'exact' only, got '{mode}'")):
        _mapped(
            lambda x: jax_optireduce.all_gather(x, "dp", mode=mode), jnp.ones((4, 2))
        )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"scatter_dimension": 2}, "scatter_dimension=2, but a leaf has the shape"),
        ({}, "to have the size of the axis, 4; to divide a larger one write tiled"),
        ({"tiled": True, "scatter_dimension": 1}, "divisible by the 4 ranks"),
        ({"axis_index_groups": [[0, 1], [2, 3]]}, "takes no axis_index_groups"),
    ],
)
def test_wrong_arguments_of_a_scatter_are_explained(how, message):
    with pytest.raises(UsageError, match=message):
        _mapped(
            lambda x: jax_optireduce.psum_scatter(x, "dp", **how), jnp.ones((4, 8, 3))
        )


def test_wrong_arguments_of_a_gather_are_explained():
    x = jnp.ones((4, 8))
    gather = jax_optireduce.all_gather
    with pytest.raises(UsageError, match="axis=3, but a leaf has the shape"):
        _mapped(lambda x: gather(x, "dp", axis=3), x)
    with pytest.raises(UsageError, match="needs to='varying' or to='invarying'"):
        _mapped(lambda x: gather(x, "dp", to="reduced"), x)
    with pytest.raises(UsageError, match=r"gather jax\.random\.key_data"):
        _mapped(lambda _: gather(jax.random.key(1), "dp"), x)
    with pytest.raises(AxisError, match="not mapped here"):
        _mapped(lambda x: gather(x, "tp"), x)


def test_region_with_automatic_axes_is_refused():
    mesh = mesh_of((4, 2), ("dp", "tp"))
    mapped = jax.shard_map(
        lambda x: jax_optireduce.psum_scatter(x, "dp"),
        mesh=mesh,
        in_specs=_P(None),
        out_specs=_P("dp"),
        axis_names={"dp"},
        check_vma=False,
    )
    with pytest.raises(UsageError, match="all axes are manual, but the compiler"):
        jax.jit(mapped)(jnp.ones((4, 2)))


@pytest.mark.parametrize("vma", [True, False])
def test_statistics_of_a_stage_are_those_of_its_calls(vma):
    def local(row: jax.Array) -> Any:
        part, scattered = jax_optireduce.psum_scatter(
            row, "dp", mode="bounded", return_stats=True
        )
        _, gathered = jax_optireduce.all_gather(part, "dp", return_stats=True)
        return jnp.stack([scattered.missing_results, gathered.missing_contributions])

    assert not np.asarray(_mapped(local, jnp.ones((4, 4, 3)), vma=vma)).any()
