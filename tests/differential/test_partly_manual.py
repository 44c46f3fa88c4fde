"""Regions where the compiler shards some axes by itself: bytes, specs, other calls."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
WIDTH = 64
SPECS = {"down": _P(None, "fast"), "up": _P("fast"), "bias": _P(), "scale": _P()}


def _mesh():
    return mesh_of((2, 2), ("slow", "fast"))


def _mapped(function, **arguments):
    """Maps a function over "slow"."""
    arguments = {"in_specs": _P(), "out_specs": _P(), **arguments}
    return jax.shard_map(
        function, mesh=_mesh(), axis_names={"slow"}, check_vma=False, **arguments
    )


def _loss(params, x):
    hidden = jnp.tanh(x @ params["down"] + params["bias"])
    return jnp.mean((x + params["scale"] * (hidden @ params["up"])) ** 2)


def _program(reduce):
    """Returns the text of a compiled train step."""
    params = {
        "down": jnp.ones((WIDTH, 2 * WIDTH)),
        "up": jnp.ones((2 * WIDTH, WIDTH)),
        "bias": jnp.ones(2 * WIDTH),
        "scale": jnp.ones(()),
    }
    at = functools.partial(NamedSharding, _mesh())
    of_params = jax.tree.map(at, SPECS, is_leaf=lambda x: isinstance(x, _P))

    def step(params, x):
        gradients = reduce(jax.grad(_loss)(params, x))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    program = jax.jit(
        _mapped(step, in_specs=(_P(), _P("slow"))),
        in_shardings=(of_params, at(_P("slow"))),
        out_shardings=of_params,
    )
    return program.lower(params, jnp.ones((16, WIDTH))).compile().as_text()


def _collectives(text):
    """Returns the number of collectives of XLA."""
    names = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    return len(re.findall(rf" (?:{names})\(", text))


def _sizes(text, operation):
    """Returns the elements of the result of each operation of this kind."""
    shapes = re.findall(rf"f32\[([\d,]*)\]\S* {operation}\(", text)
    return [int(np.prod([int(n) for n in s.split(",") if n])) for s in shapes]


@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_each_device_sends_its_part_by_as_few_collectives_as_with_pmean(mode):
    text = _program(
        functools.partial(
            jax_optireduce.average_gradients, axis_name="slow", mode=mode, specs=SPECS
        )
    )
    (call,) = re.findall(r"= \((.*)\) custom-call\(.*jax_optireduce_allreduce", text)
    sent = {tuple(map(int, s.split(","))) for s in re.findall(r"f32\[([\d,]+)\]", call)}
    assert {(WIDTH, WIDTH), (WIDTH,), (1,)} <= sent
    assert (WIDTH, 2 * WIDTH) not in sent
    # Within a process, leaves that are whole on each device are put together again;
    # none of the divided leaves moves, and nothing moves along the slow axis.
    assert max(_sizes(text, "all-gather")) <= 2 * WIDTH
    assert not _sizes(text, "all-to-all")
    of_pmean = _program(lambda gradients: jax.lax.pmean(gradients, "slow"))
    assert _collectives(text) <= _collectives(of_pmean)
    groups = set(re.findall(r"replica_groups=(\S+?),? ", text))
    assert not any("[2,2]<=[2,2]T(1,0)" in group for group in groups)


def test_without_specs_the_largest_dimension_is_divided():
    text = _program(functools.partial(jax_optireduce.psum, axis_name="slow"))
    (call,) = re.findall(r"= \((.*)\) custom-call\(.*jax_optireduce_allreduce", text)
    assert f"f32[{WIDTH},{2 * WIDTH}]" not in call


def test_means_of_all_dtypes():
    tree = {
        "ints": jnp.arange(6, dtype=jnp.int32).reshape(2, 3),
        "odd ints": jnp.arange(3, dtype=jnp.int32),
        "bfloat16": jnp.arange(5, dtype=jnp.bfloat16),
        "none": jnp.zeros((0, 4)),
    }
    # XLA aborts at the compilation of a lax.pmean of bfloat16 in such a region.
    for mode in ("exact", "bounded", "agreed"):
        call = functools.partial(jax_optireduce.pmean, axis_name="slow", mode=mode)
        means = jax.jit(_mapped(call))(tree)
        for name, x in tree.items():
            floating = jnp.issubdtype(x.dtype, jnp.floating)
            assert means[name].dtype == (x.dtype if floating else jnp.float32)
            np.testing.assert_array_equal(means[name], x)


def test_a_drain_and_a_resync_work():
    params = {"w": jnp.arange(8.0), "odd": jnp.arange(3.0), "count": jnp.int32(7)}

    def step(params):
        means = jax_optireduce.average_gradients(
            {k: params[k] for k in ("w", "odd")}, "slow", name="gradients"
        )
        rest = jax_optireduce.drain(means, "slow", name="gradients")
        return rest, jax_optireduce.resync({**params, **means}, "slow", specs=_P())

    rest, same = jax.jit(_mapped(step))(params)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), rest)
    jax.tree.map(np.testing.assert_array_equal, same, params)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"w": _P("nowhere")}, "names the axis 'nowhere'; the axes .* slow, fast"),
        ({"w": _P(None, None, "fast")}, "has 3 dimensions, its leaf .* has 2"),
        ({"v": _P()}, "a prefix of it"),
        ({"w": "fast"}, "needs specs of jax.sharding.PartitionSpec"),
    ],
)
def test_specs_that_do_not_fit_are_explained(specs, message):
    call = functools.partial(jax_optireduce.psum, axis_name="slow", specs=specs)
    with pytest.raises(jax_optireduce.UsageError, match=message):
        jax.jit(_mapped(call)).trace({"w": jnp.ones((4, 4))})


def test_specs_of_other_kinds_and_prefixes_are_valid():
    tree = {"a": {"w": jnp.ones((4, 6))}, "b": jnp.ones(8), "c": jnp.float32(1)}
    sharding = NamedSharding(_mesh(), _P("slow", "fast"))
    for specs in (_P(), {"a": sharding, "b": None, "c": _P()}, None):
        call = functools.partial(jax_optireduce.psum, axis_name="slow", specs=specs)
        sums = jax.jit(_mapped(call))(tree)
        jax.tree.map(lambda s, x: np.testing.assert_array_equal(s, 2 * x), sums, tree)
