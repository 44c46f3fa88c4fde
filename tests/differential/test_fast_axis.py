"""Sums with `fast_axis=`: values, derivatives, training, bytes, errors."""

import functools
import re
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

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
_AXES = ("slow", "fast")
_FAST = {"axis_name": _AXES, "fast_axis": "fast"}
_VMA = pytest.mark.parametrize("vma", [True, False], ids=["typed", "untyped"])
_MODES = pytest.mark.parametrize("mode", ["exact", "agreed", "bounded", "lossy"])


def _mapped(function: Any, *, vma: bool, shape: Any = (2, 2), axes: Any = _AXES) -> Any:
    """Maps a function over all devices; each has one row of the arguments."""

    def local(*rows: Any) -> Any:
        return function(*jax.tree.map(lambda x: x[0], rows))

    return jax.jit(
        jax.shard_map(
            local,
            mesh=mesh_of(shape, axes),
            in_specs=_P(axes),
            out_specs=_P(),
            check_vma=vma,
        )
    )


def _tree(devices: int = 4) -> Any:
    """Returns whole numbers, whose sums are the same in any order."""
    shapes = {
        "matrix": ((6, 4), jnp.float32),
        "odd": ((5,), jnp.float32),
        "scalar": ((), jnp.float32),
        "half": ((3, 3), jnp.bfloat16),
        "none": ((0, 2), jnp.float32),
    }
    draw = np.random.default_rng(0)
    return {
        name: jnp.asarray(draw.integers(-8, 9, (devices, *shape)), dtype)
        for name, (shape, dtype) in shapes.items()
    }


def _assert_equal(found: Any, expected: Any) -> None:
    def check(x: Any, y: Any) -> None:
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)

    jax.tree.map(check, found, expected)


@_VMA
@_MODES
@pytest.mark.parametrize("shape", [(4, 2), (2, 4)])
def test_sums_and_means_are_those_of_lax(shape, mode, vma):
    tree = _tree(int(np.prod(shape)))
    if mode != "lossy":
        tree["count"] = jnp.arange(3 * np.prod(shape), dtype=jnp.int32).reshape(-1, 3)
    for ours, theirs in (
        (jax_optireduce.psum, lax.psum),
        (jax_optireduce.pmean, lax.pmean),
    ):
        call = functools.partial(ours, mode=mode, **_FAST)
        found = _mapped(call, vma=vma, shape=shape)(tree)
        expected = _mapped(lambda t, f=theirs: f(t, _AXES), vma=vma, shape=shape)(tree)
        if mode == "lossy":  # The rotation rounds.
            jax.tree.map(
                lambda x, y: np.testing.assert_allclose(
                    np.asarray(x, np.float32), np.asarray(y, np.float32), 0, 0.5
                ),
                found,
                expected,
            )
        else:
            _assert_equal(found, expected)


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4),
    vma=st.booleans(),
)
def test_leaves_of_any_shape_are_put_together_again(shapes, vma):
    draw = np.random.default_rng(1)
    tree = [jnp.asarray(draw.integers(-8, 9, (4, *s)), jnp.float32) for s in shapes]
    call = functools.partial(jax_optireduce.psum, **_FAST)
    expected = _mapped(lambda t: lax.psum(t, _AXES), vma=vma)(tree)
    _assert_equal(_mapped(call, vma=vma)(tree), expected)


@_VMA
@pytest.mark.parametrize("fast", [("b", "c"), ["c"], "a"])
def test_any_of_several_axes_can_be_fast(fast, vma):
    axes, shape = ("a", "b", "c"), (2, 2, 2)
    call = functools.partial(jax_optireduce.psum, axis_name=axes, fast_axis=fast)
    tree = _tree(8)
    found = _mapped(call, vma=vma, shape=shape, axes=axes)(tree)
    reference = _mapped(lambda t: lax.psum(t, axes), vma=vma, shape=shape, axes=axes)
    _assert_equal(found, reference(tree))


@_VMA
def test_gradients_are_those_of_lax_psum(vma):
    rows = jnp.arange(20.0).reshape(4, 5)

    def derivatives(reduce: Any, x: Any) -> Any:
        def loss(x: Any) -> Any:
            return (reduce(x) ** 2).sum()

        # A row of the gradient and a tangent, equal on all devices.
        tangent = jax.jvp(loss, (x,), (jnp.ones_like(x) * x[0],))[1]
        gradient = lax.psum(jax.grad(loss)(x) * (1 + x), _AXES)
        return gradient, tangent if vma else lax.pmean(tangent, _AXES)

    ours = functools.partial(jax_optireduce.psum, mode="exact", **_FAST)
    found, expected = (
        _mapped(functools.partial(derivatives, reduce), vma=vma)(rows)
        for reduce in (ours, lambda x: lax.psum(x, _AXES))
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def _varying(params: Any) -> Any:
    return jax.tree.map(lambda p: lax.pcast(p, _AXES, to="varying"), params)


def _loss(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["hidden"])
    return ((hidden @ params["out"] + params["bias"] - jnp.sin(x.sum())) ** 2).mean()


def _reference(params: Any, x: Any, mode: str) -> Any:
    del mode
    return lax.pmean(jax.grad(_loss)(_varying(params), x), _AXES)


def _after(params: Any, x: Any, mode: str) -> Any:
    gradients = jax.grad(_loss)(_varying(params), x)
    return jax_optireduce.average_gradients(gradients, mode=mode, **_FAST)


def _in_backward(params: Any, x: Any, mode: str) -> Any:
    def loss(params: Any) -> Any:
        return _loss(jax_optireduce.sync_in_backward(params, mode=mode, **_FAST), x)

    return jax.grad(loss)(params)


def _with_optax(params: Any, x: Any, mode: str) -> Any:
    averaged = jax_optireduce.optax_average_gradients(mode=mode, **_FAST)
    optimizer = optax.chain(averaged, optax.scale(1.0))
    gradients = jax.grad(_loss)(_varying(params), x)
    return optimizer.update(gradients, optimizer.init(params), params)[0]


def _train(gradient: Any, *, vma: bool, mode: str = "exact") -> Any:
    def step(params: Any, x: Any) -> Any:
        updates = gradient(params, x, mode)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, updates)

    specs = {"in_specs": (_P(), _P(_AXES)), "out_specs": _P(), "check_vma": vma}
    step = jax.jit(jax.shard_map(step, mesh=mesh_of((2, 2), _AXES), **specs))
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "hidden": jax.random.normal(keys[0], (6, 7)) / 3,
        "out": jax.random.normal(keys[1], (7,)) / 3,
        "bias": jnp.zeros(()),
    }
    draw = np.random.default_rng(1)
    for _ in range(50):
        params = step(params, jnp.asarray(draw.normal(size=(16, 6)), jnp.float32))
    return params


@pytest.fixture(scope="module")
def expected() -> Any:
    return _train(_reference, vma=True)


@_VMA
@pytest.mark.parametrize(
    ("gradient", "mode"),
    [(_after, "exact"), (_in_backward, "bounded"), (_with_optax, "bounded")],
)
def test_training_is_that_of_lax_pmean(gradient, mode, vma, expected):
    found = _train(gradient, vma=vma, mode=mode)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), found, expected
    )


def _calls(text: str) -> list[str]:
    return re.findall(r"= \((.*)\) custom-call\(.*jax_optireduce_allreduce", text)


@_VMA
def test_a_device_sends_its_part_in_one_call_between_two_collectives(vma):
    call = functools.partial(jax_optireduce.average_gradients, **_FAST)
    tree = {"w": jnp.ones((4, 30, 10)), "b": jnp.ones((4, 7))}
    text = _mapped(call, vma=vma).lower(tree).compile().as_text()
    (sent,) = _calls(text)
    # 307 elements and one of padding, in two parts.
    assert sent.startswith("f32[154]")
    scatters = re.findall(r" (?:reduce-scatter|all-reduce)\(", text)
    gathers = re.findall(r" all-gather\(", text)
    assert (len(scatters), len(gathers)) == (1, 1)
    # Both within a process: devices 0 and 1, 2 and 3.
    groups = set(re.findall(r"replica_groups=(\{\{.*?\}\}|\[\S*?\]<=\[\d+\]),", text))
    assert groups <= {"{{0,1},{2,3}}", "[2,2]<=[4]"}


def test_buckets_are_as_large_as_what_a_device_sends():
    # Two leaves fill a bucket of 25 MiB with their parts, and are 50 MiB.
    elements = 25 << 18
    tree = [jax.ShapeDtypeStruct((4, elements), jnp.float32)] * 6
    call = functools.partial(jax_optireduce.psum, **_FAST)
    text = _mapped(call, vma=False).lower(tree).compile().as_text()
    assert len(_calls(text)) == 3
    assert all(sent.startswith(f"f32[{elements}]") for sent in _calls(text))


@_VMA
def test_a_drain_and_a_resync_work(vma):
    def step(params: Any) -> Any:
        call = {"name": "gradients", **_FAST}
        means, report = jax_optireduce.average_gradients(
            params, return_stats=True, **call
        )
        rest = jax_optireduce.drain(means, **call)
        kept = _varying(means) if vma else means
        return rest, jax_optireduce.resync(kept, **_FAST), means, report.sequence

    tree = {k: v for k, v in _tree().items() if k != "half"}
    mapped = _mapped(step, vma=vma)
    _, _, _, before = mapped(tree)
    rest, same, means, sequence = mapped(tree)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), rest)
    jax.tree.map(np.testing.assert_array_equal, same, means)
    # The drain is a call of the same collective.
    assert int(sequence) - int(before) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"axis_name": "slow", "fast_axis": "fast"},
            r"fast_axis='fast', which is not .*Write both: psum\(x, \('slow', 'fast'\)",
        ),
        (
            {"axis_name": _AXES, "fast_axis": "ice"},
            "fast_axis='ice', which is not",
        ),
        ({"axis_name": _AXES, "fast_axis": _AXES}, "leave one for the slow network"),
        ({"axis_name": "fast", "fast_axis": "fast"}, "leave one for the slow network"),
        ({"axis_name": _AXES, "fast_axis": ()}, "must be some of the axes"),
    ],
)
def test_a_fast_axis_that_does_not_fit_is_explained(arguments, message):
    call = functools.partial(jax_optireduce.psum, **arguments)
    with pytest.raises(jax_optireduce.UsageError, match=message):
        _mapped(call, vma=False)(_tree())


def test_a_fast_axis_of_vmap_is_explained():
    def batched(x: Any) -> Any:
        arguments = {"axis_name": ("slow", "batch"), "fast_axis": "batch"}
        call = functools.partial(jax_optireduce.psum, **arguments)
        return jax.vmap(call, axis_name="batch")(x)

    with pytest.raises(jax_optireduce.UsageError, match=r"axis of a jax\.vmap"):
        _mapped(batched, vma=False)(jnp.ones((4, 3)))


def test_a_fast_axis_of_the_compiler_is_explained():
    mapped = jax.shard_map(
        functools.partial(jax_optireduce.psum, **_FAST),
        mesh=mesh_of((2, 2, 2), (*_AXES, "auto")),
        axis_names=set(_AXES),
        in_specs=_P(),
        out_specs=_P(),
        check_vma=False,
    )
    with pytest.raises(jax_optireduce.UsageError, match="the compiler shards auto"):
        jax.jit(mapped)(jnp.ones(4))


def test_the_backend_of_xla_takes_a_fast_axis():
    # The last test of the file: it ends the session of the others.
    jax_optireduce.shutdown()
    with jax_optireduce.init(backend="xla"):
        tree = _tree()
        call = functools.partial(jax_optireduce.psum, **_FAST)
        expected = _mapped(lambda t: lax.psum(t, _AXES), vma=False)(tree)
        _assert_equal(_mapped(call, vma=False)(tree), expected)
