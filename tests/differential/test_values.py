"""For any tree, dtype and world size, sums and means have the bits of `jax.lax`.

On whole numbers, whose sums are the same in any order; in every mode without loss,
because data between the devices of one process is never late.
"""

import functools
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec

import jax_optireduce

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec

_FLOATS = ("float32", "bfloat16", "float16", "float64")
_SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
_DTYPES = (*_FLOATS, "int32", "bool")
_LEAVES = st.tuples(_SHAPES, st.sampled_from(_DTYPES))
_TREES = st.recursive(
    _LEAVES,
    lambda trees: (
        st.lists(trees, max_size=4)
        | st.dictionaries(st.sampled_from("abc"), trees, max_size=3)
    ),
    max_leaves=8,
)


def _is_leaf(node: Any) -> bool:
    return isinstance(node, tuple)


def _mesh(world_size: int) -> jax.sharding.Mesh:
    return mesh_of((world_size,), ("dp",))


def _reduced(reduce: Any, tree: Any, world_size: int, *, vma: bool = True) -> Any:
    mapped = jax.shard_map(
        lambda t: reduce(jax.tree.map(lambda x: x[0], t), "dp"),
        mesh=_mesh(world_size),
        in_specs=_P("dp"),
        out_specs=_P(),
        check_vma=vma,
    )
    return jax.jit(mapped)(tree)


def _assert_same_bits(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    tree=_TREES,
    world_size=st.integers(1, 8),
    seed=st.integers(0, 2**31),
    vma=st.booleans(),
    mode=st.sampled_from(("exact", "agreed", "bounded")),
)
def test_any_tree_gives_the_bits_of_lax(tree, world_size, seed, vma, mode):
    random = np.random.default_rng(seed)
    with jax.enable_x64():
        values = jax.tree.map(
            lambda leaf: jnp.asarray(
                random.integers(-8, 9, (world_size, *leaf[0])), leaf[1]
            ),
            tree,
            is_leaf=_is_leaf,
        )
        _assert_same_bits(
            _reduced(
                functools.partial(jax_optireduce.psum, mode=mode),
                values,
                world_size,
                vma=vma,
            ),
            _reduced(lax.psum, values, world_size, vma=vma),
        )


@pytest.mark.parametrize(("x64", "vma"), [(True, True), (False, False)])
@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded"])
@pytest.mark.parametrize(
    "function",
    [jax_optireduce.pmean, jax_optireduce.average_gradients],
    ids=["pmean", "average_gradients"],
)
def test_mean_of_every_dtype_has_the_dtype_and_bits_of_lax(function, mode, x64, vma):
    with jax.enable_x64(x64):
        # Without 64-bit types, float64 becomes float32.
        tree = {
            dtype: jnp.asarray(np.arange(24).reshape(4, 6) % 7 - 2, dtype)
            for dtype in _DTYPES
            if x64 or dtype != "float64"
        }
        ours = _reduced(functools.partial(function, mode=mode), tree, 4, vma=vma)
        _assert_same_bits(ours, _reduced(lax.pmean, tree, 4, vma=vma))
        assert all(ours[dtype].dtype == dtype for dtype in _FLOATS if dtype in tree)
        assert ours["int32"].dtype == ours["bool"].dtype == "float32"


@pytest.mark.parametrize("world_size", [3, 7])
@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded"])
def test_mean_of_integers_over_any_ranks_has_the_bits_of_lax(mode, world_size):
    x = jnp.arange(world_size * 100, dtype=jnp.int32).reshape(world_size, 100) ** 3
    ours = _reduced(functools.partial(jax_optireduce.pmean, mode=mode), x, world_size)
    expected = _reduced(lax.pmean, x, world_size)
    if mode == "bounded":
        # Values that are counted are added as floats.
        np.testing.assert_allclose(ours, expected, rtol=1e-6)
    else:
        _assert_same_bits(ours, expected)


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize("kind", ["psum", "pmean"])
def test_counter_that_is_equal_on_all_ranks_is_reduced_as_by_lax(kind, vma):
    def reduce(module: Any) -> Any:
        mapped = jax.shard_map(
            lambda state: getattr(module, kind)(state, "dp"),
            mesh=_mesh(4),
            in_specs=({"mean": _P("dp"), "count": _P(), "trained": _P()},),
            out_specs=_P(),
            check_vma=vma,
        )
        state = {"mean": jnp.arange(8.0), "count": jnp.int32(7), "trained": True}
        return jax.jit(mapped)(state)

    _assert_same_bits(reduce(jax_optireduce), reduce(lax))


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("kind", ["psum", "pmean"])
@pytest.mark.parametrize(
    "constant", [True, np.bool_(True), np.ones(3, bool), 3, np.int32(3), 2.5], ids=repr
)
def test_constant_of_the_program_is_reduced_as_by_lax(constant, kind, x64):
    def reduce(module: Any) -> Any:
        return _reduced(
            lambda _, axis: getattr(module, kind)(constant, axis),
            jnp.ones(4),
            4,
            vma=False,
        )

    with jax.enable_x64(x64):
        _assert_same_bits(reduce(jax_optireduce), reduce(lax))


@pytest.mark.parametrize("dtype", _FLOATS)
@pytest.mark.parametrize("world_size", [3, 6, 7])
def test_bounded_mean_has_the_bits_of_the_sum_divided_by_the_ranks(dtype, world_size):
    def divided(x: Any, axis: str) -> Any:
        return jax_optireduce.psum(x, axis, mode="bounded") / world_size

    with jax.enable_x64():
        random = np.random.default_rng(world_size)
        x = jnp.asarray(random.normal(size=(world_size, 1000)), dtype)
        ours = _reduced(
            functools.partial(jax_optireduce.pmean, mode="bounded"), x, world_size
        )
        _assert_same_bits(ours, _reduced(divided, x, world_size))


@pytest.mark.parametrize("mode", ["exact", "agreed", "lossy"])
def test_mean_of_a_mode_that_ends_with_a_dead_rank_only_divides(mode):
    def operations(reduce: Any) -> list[str]:
        mapped = jax.shard_map(
            lambda x: reduce(x, "dp", mode=mode, name="only divides"),
            mesh=_mesh(4),
            in_specs=_P("dp"),
            out_specs=_P(),
        )
        (inner,) = jax.make_jaxpr(mapped)(jnp.ones(4)).eqns
        return [equation.primitive.name for equation in inner.params["jaxpr"].eqns]

    sums, means = operations(jax_optireduce.psum), operations(jax_optireduce.pmean)
    assert means == [*sums, "div"]


def test_small_buckets_of_many_leaves_give_the_bits_of_lax():
    random = np.random.default_rng(3)
    leaves = [
        jnp.asarray(random.integers(-8, 9, (4, 1 + i % 7)), jnp.float32)
        for i in range(160)
    ]
    _assert_same_bits(
        _reduced(jax_optireduce.psum, leaves, 4), _reduced(lax.psum, leaves, 4)
    )
    _assert_same_bits(
        _reduced(jax_optireduce.average_gradients, leaves, 4),
        _reduced(lax.pmean, leaves, 4),
    )


def test_contributions_are_added_in_rank_order():
    # Only in this order does float32 lose both ones.
    x = jnp.array([[1e8], [1.0], [1.0], [-1e8]], jnp.float32)
    total = np.float32(0)
    for row in np.asarray(x):
        total = np.float32(total + row[0])
    assert _reduced(jax_optireduce.psum, x, 4)[0] == total


def test_report_of_an_exact_call_counts_the_calls_and_loses_nothing():
    def reduce(tree: Any, axis: str) -> Any:
        return jax_optireduce.psum(tree, axis, name="counted", return_stats=True)[1]

    mapped = jax.jit(
        jax.shard_map(
            lambda x: reduce(x, "dp"), mesh=_mesh(4), in_specs=_P("dp"), out_specs=_P()
        )
    )
    reports = [mapped(jnp.ones(4)) for _ in range(3)]
    assert [int(r.sequence) for r in reports] == [0, 1, 2]
    for report in reports:
        assert float(report.missing_contributions) == 0
        assert float(report.missing_results) == 0
        assert float(report.elapsed_s) >= 0


def test_step_is_the_number_of_the_call_and_must_grow():
    def reduce(x: Any, step: Any) -> Any:
        return jax_optireduce.psum(
            x, "dp", step=step, name="stepped", return_stats=True
        )

    mapped = jax.jit(
        jax.shard_map(
            reduce, mesh=_mesh(2), in_specs=(_P("dp"), _P()), out_specs=(_P(), _P())
        )
    )
    x = jnp.array([1.0, 2.0])
    for step in (3, 4, 9):
        total, report = mapped(x, jnp.int32(step))
        assert (float(total[0]), int(report.sequence)) == (3.0, step)
    with pytest.raises(jax.errors.JaxRuntimeError, match="step must grow"):
        jax.block_until_ready(mapped(x, jnp.int32(9)))
    assert float(mapped(x, jnp.int32(10))[0][0]) == 3.0


@pytest.mark.parametrize("dtype", _FLOATS)
def test_lossy_without_loss_is_right_to_the_precision_of_the_dtype(dtype):
    with jax.enable_x64():
        random = np.random.default_rng(5)
        x = {
            "w": jnp.asarray(random.normal(size=(4, 33, 65)), dtype),
            "b": jnp.asarray(random.normal(size=(4,)), dtype),
        }

        def lossy(tree: Any, axis: str) -> Any:
            return jax_optireduce.pmean(tree, axis, mode="lossy")

        ours, theirs = _reduced(lossy, x, 4), _reduced(lax.pmean, x, 4)
        precision = 8 * float(jnp.finfo(dtype).eps)
        for name in x:
            assert ours[name].dtype == dtype
            np.testing.assert_allclose(
                np.asarray(ours[name], np.float64),
                np.asarray(theirs[name], np.float64),
                rtol=precision,
                atol=precision,
            )


def test_lossy_calls_can_be_repeated_and_interleaved_with_steps():
    def reduce(x: Any, step: Any) -> Any:
        counted = jax_optireduce.psum(
            x, "dp", mode="lossy", name="counting", return_stats=True
        )
        stepped = jax_optireduce.psum(
            x, "dp", mode="lossy", step=step, name="stepping", return_stats=True
        )
        return counted, stepped

    mapped = jax.jit(
        jax.shard_map(reduce, mesh=_mesh(4), in_specs=(_P("dp"), _P()), out_specs=_P())
    )
    x = jnp.arange(4.0)
    for i in range(3):
        (counted, one), (stepped, two) = mapped(x, jnp.int32(10 * i))
        np.testing.assert_allclose([counted[0], stepped[0]], 6.0, rtol=1e-6)
        assert (int(one.sequence), int(two.sequence)) == (i, 10 * i)
