"""Mistakes are errors when the program is traced, and explain the correction."""

import functools
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import PartitionSpec

import jax_optireduce
from jax_optireduce._native import NAME_BYTES_MAX

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec


def _mesh(shape=(4, 2), names=("dp", "tp")):
    return mesh_of(shape, names)


def _trace(function, x=None, *, check_vma=True, **arguments):
    """Traces `function` of one shard of `x`, without running it."""
    x = jnp.ones((8, 2)) if x is None else x
    spec = _P(*("dp", "tp")[: x.ndim])
    mapped = jax.shard_map(
        function,
        mesh=_mesh(),
        in_specs=spec,
        out_specs=_P(),
        check_vma=check_vma,
        **arguments,
    )
    jax.jit(mapped).trace(x)


def _rejects(match, function, *args, error=jax_optireduce.UsageError, **arguments):
    with pytest.raises(error, match=match):
        _trace(function, *args, **arguments)


def test_unknown_axis_names_the_mapped_ones_and_suggests():
    _rejects(
        "'db', which is not mapped here; mapped are: dp, tp. Did you mean 'dp'",
        lambda x: jax_optireduce.psum(x, "db"),
        error=jax_optireduce.AxisError,
    )


def test_unknown_axis_is_a_name_error_as_from_lax():
    _rejects("nope", lambda x: jax_optireduce.psum(x, "nope"), error=NameError)


def test_plain_jit_is_told_to_use_shard_map():
    with pytest.raises(jax_optireduce.AxisError, match="inside jax\\.shard_map"):
        jax.jit(lambda x: jax_optireduce.psum(x, "dp")).trace(1.0)


_WITH_MODES = [
    jax_optireduce.psum,
    jax_optireduce.pmean,
    jax_optireduce.average_gradients,
    jax_optireduce.sync_in_backward,
    functools.partial(jax_optireduce.drain, name="gradients"),
]


@pytest.mark.parametrize(
    "function", [*_WITH_MODES[:4], jax_optireduce.psum_scatter, jax_optireduce.begin]
)
def test_a_misspelt_argument_is_an_error_with_its_name(function):
    _rejects(
        f"{function.__name__} got an unexpected .*'modes'. Did you mean 'mode'",
        lambda x: function(x, "dp", modes="exact"),
        error=TypeError,
    )


def test_positional_axis_is_told_to_use_sum():
    _rejects("the position 0; use x.sum", lambda x: jax_optireduce.psum(x, 0))


@pytest.mark.parametrize("axis", [(), ("dp", "dp")])
def test_axes_must_be_some_and_different(axis):
    _rejects("tuple of different ones", lambda x: jax_optireduce.psum(x, axis))


def test_an_automatic_axis_is_not_mapped():
    with pytest.raises(jax_optireduce.AxisError, match="mapped are: dp"):
        jax.jit(
            jax.shard_map(
                lambda x: jax_optireduce.psum(x, "tp"),
                mesh=_mesh(),
                in_specs=_P("dp"),
                out_specs=_P(),
                axis_names={"dp"},
            )
        ).trace(jnp.ones((8, 2)))


_MEAN = functools.partial(jax_optireduce.pmean, axis_name="dp")


@pytest.mark.parametrize(
    ("axis", "arguments", "message"),
    [
        ("dp", {}, "there is no mesh here; pass mesh="),
        ("dq", {"mesh": _mesh}, "no axis 'dq'; it has dp, tp. Did you mean 'dp'"),
        ("dp", {"mesh": _mesh, "batch_argnums": 1}, "the call has 1 positional"),
    ],
)
def test_a_region_without_its_axis_is_explained(axis, arguments, message):
    if "mesh" in arguments:
        arguments = {**arguments, "mesh": arguments["mesh"]()}
    region = jax_optireduce.over_slow_axis(_MEAN, axis, **arguments)
    with pytest.raises(jax_optireduce.UsageError, match=re.escape(message)):
        jax.jit(region).trace(jnp.ones(8))


def test_a_region_in_a_region_is_told_to_make_the_call():
    region = jax_optireduce.over_slow_axis(_MEAN, "dp", mesh=_mesh())
    _rejects("call average_gradients or pmean there directly", region)


def test_value_that_is_reduced_already_is_told_to_sync_in_backward():
    def step(x):
        gradient = jax.grad(lambda w: (w * x).sum())(jnp.float32(1))
        return jax_optireduce.average_gradients({"w": gradient}, "dp")

    _rejects(r"\['w'\].*reduced already.*sync_in_backward", step)


@pytest.mark.parametrize("reduce", [jax_optireduce.psum, jax_optireduce.pmean])
def test_a_value_that_is_the_same_on_all_ranks_is_explained_as_a_value(reduce):
    def report(x):
        return reduce(lax.pmax(x, "dp"), "dp")

    advice = rf"no call is needed.*{reduce.__name__}\(jax.lax.pcast\(x, \('dp',\)"
    _rejects(f"all ranks have the same value.*{advice}", report)


@pytest.mark.parametrize("reduce", [jax_optireduce.psum, jax_optireduce.pmean])
def test_the_advice_for_a_value_that_does_not_vary_gives_the_result_of_jax(reduce):
    reference = getattr(lax, reduce.__name__)

    def both(x):
        largest = lax.pmax(x.sum(), "dp")
        varying = lax.pcast(largest, ("dp",), to="varying")
        return reduce(varying, "dp"), reference(varying, "dp")

    mapped = jax.shard_map(both, mesh=_mesh(), in_specs=_P("dp"), out_specs=_P())
    ours, expected = jax.jit(mapped)(jnp.arange(8.0))
    assert ours == expected


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        ("int8", "x.astype\\(jnp.int32\\) or"),
        ("uint32", "x.astype\\(jnp.int32\\) or"),
        ("complex64", "real and the imaginary part"),
    ],
)
def test_unsupported_dtype_names_the_supported_ones(dtype, advice):
    _rejects(
        f"is {dtype}, which is not supported; supported are float32, .*bool. Write .*"
        f"{advice}",
        lambda x: jax_optireduce.psum(x.astype(dtype), "dp"),
    )


_COLLECTIVES = [
    jax_optireduce.psum,
    jax_optireduce.pmean,
    jax_optireduce.average_gradients,
]


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("function", _COLLECTIVES)
def test_random_key_is_told_to_stay_out_of_the_tree(function, traced):
    def step(x):
        seed = x[0, 0].astype(int) if traced else 0
        return function({"w": x, "key": jax.random.key(seed)}, ("dp", "tp"))

    _rejects(r"\['key'\] is a key of jax.random .* leave this leaf out", step)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    "function", [jax_optireduce.resync, jax_optireduce.sync_in_backward]
)
def test_random_key_of_every_rank_is_left_to_it(function, check_vma):
    keys = jax.random.split(jax.random.key(0), 4)
    mapped = jax.shard_map(
        lambda key: function({"w": jnp.ones(3), "key": key}, "dp"),
        mesh=_mesh((4,), ("dp",)),
        in_specs=_P("dp"),
        out_specs={
            "w": _P(None if function is jax_optireduce.resync else "dp"),
            "key": _P("dp"),
        },
        check_vma=check_vma,
    )
    left = jax.jit(mapped)(keys)["key"]
    assert (jax.random.key_data(left) == jax.random.key_data(keys)).all()


@pytest.mark.parametrize("function", _COLLECTIVES)
def test_gradient_of_an_integer_is_told_to_stay_out_of_the_tree(function):
    def step(x):
        parameters = {"w": x, "count": jnp.int32(3)}
        gradients = jax.grad(lambda p: p["w"].sum(), allow_int=True)(parameters)
        return function(gradients, ("dp", "tp"))

    _rejects(r"\['count'\] is float0, .* of an integer.* leave this leaf out", step)


@pytest.mark.parametrize("function", [jax_optireduce.psum, jax_optireduce.pmean])
def test_groups_of_indices_are_told_to_be_an_axis_of_the_mesh(function):
    groups = [[0, 1], [2, 3]]
    _rejects(
        rf"jax.make_mesh\(\(groups, ranks\).*write {function.__name__}\(x, 'rank'\)",
        lambda x: function(x, "dp", axis_index_groups=groups),
    )
    _trace(lambda x: function(x, ("dp", "tp"), axis_index_groups=None))


@pytest.mark.parametrize("axis", ["batch", None])
def test_pmap_without_a_name_is_told_to_give_one(axis):
    mapped = jax.pmap(lambda x: jax_optireduce.psum(x, axis))
    name = axis or "data"
    with pytest.raises(
        jax_optireduce.AxisError,
        match=rf"this jax.pmap has no name. Write jax.pmap\(f, axis_name='{name}'\)",
    ):
        mapped(jnp.ones(4))


def test_vmap_without_a_name_is_told_to_give_one():
    with pytest.raises(jax_optireduce.AxisError, match=r"jax.vmap\(f, axis_name="):
        jax.vmap(lambda x: jax_optireduce.psum(x, "batch"))(jnp.ones(4))


def test_lossy_integers_are_told_the_modes_that_take_them():
    def total(x, mode):
        return jax_optireduce.psum(x.astype(jnp.int32), ("dp", "tp"), mode=mode)

    _rejects(
        r"write x.astype\(jnp.float32\), or .* mode='exact' or mode='bounded'",
        lambda x: total(x, "lossy"),
    )
    for mode in ("exact", "agreed", "bounded"):
        _trace(functools.partial(total, mode=mode))


@pytest.mark.parametrize("leaf", [None, "text", object()])
def test_leaf_that_is_no_array_is_an_error_and_none_is_no_leaf(leaf):
    def step(x):
        return jax_optireduce.psum({"x": x, "other": leaf}, ("dp", "tp"))

    if leaf is None:
        _trace(step)
    else:
        _rejects(r"\['other'\] must be an array or a number", step)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("exakt", "Did you mean 'exact'"),
        (1, "must be 'exact', 'agreed', 'bounded' or 'lossy', got 1"),
    ],
)
@pytest.mark.parametrize("function", _WITH_MODES)
def test_unknown_mode_names_the_known_ones(function, mode, expected):
    _rejects(expected, lambda x: function(x, "dp", mode=mode))


def test_optax_transformation_checks_its_mode_at_once():
    with pytest.raises(jax_optireduce.UsageError, match="Did you mean 'bounded'"):
        jax_optireduce.optax_average_gradients("dp", mode="bound")


@pytest.mark.parametrize(
    ("wire_format", "expected"),
    [
        ("int4", "Did you mean 'int8'"),
        (8, "must be 'float32', 'bfloat16', 'int8', 'auto' or 'float4', got 8"),
    ],
)
@pytest.mark.parametrize("function", _WITH_MODES)
def test_unknown_wire_format_names_the_known_ones(function, wire_format, expected):
    _rejects(expected, lambda x: function(x, "dp", wire_format=wire_format))


def test_optax_transformation_checks_its_wire_format_at_once():
    with pytest.raises(jax_optireduce.UsageError, match="Did you mean 'int8'"):
        jax_optireduce.optax_average_gradients("dp", wire_format="uint8")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "bool"])
def test_only_float32_is_rounded(dtype):
    def total(x, **how):
        return jax_optireduce.psum({"w": x.astype(dtype)}, ("dp", "tp"), **how)

    _rejects(
        rf"\['w'\] is {dtype}, and wire_format='int8' rounds float32 values "
        "only; leave wire_format out",
        functools.partial(total, wire_format="int8"),
    )
    _trace(functools.partial(total, wire_format="float32"))


def test_drain_is_told_to_name_the_calls():
    _rejects(
        "write name='gradients' there and here",
        lambda x: jax_optireduce.drain(x, "dp", name=None),
    )


def test_resync_of_an_unknown_axis_suggests_the_mapped_one():
    _rejects(
        "Did you mean 'dp'",
        lambda x: jax_optireduce.resync(x, "db"),
        error=jax_optireduce.AxisError,
    )


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (-1, "from 0 to"),
        (2**31, "from 0 to"),
        (1.5, "one whole number"),
        (True, "one whole number"),
        ([1, 2], "one whole number"),
    ],
)
def test_step_must_be_one_whole_number(step, expected):
    _rejects(expected, lambda x: jax_optireduce.psum(x, "dp", step=step))


def test_step_must_not_be_mapped_by_vmap():
    def step(x):
        mapped = jax.vmap(lambda y, i: jax_optireduce.psum(y, "dp", step=i))
        return mapped(x, jnp.arange(len(x)))

    _rejects("does not depend on the mapped axis", step)


_PI = "\N{GREEK SMALL LETTER PI}"  # two bytes


@pytest.mark.parametrize(
    "name", ["", "a\nb", "\ud800", 3, "x" * (NAME_BYTES_MAX + 1), _PI * NAME_BYTES_MAX]
)
def test_name_must_fit_into_a_message(name):
    expected = f"printable characters, 1 to {NAME_BYTES_MAX} bytes in UTF-8, got"
    _rejects(expected, lambda x: jax_optireduce.psum(x, "dp", name=name))


@pytest.mark.parametrize("name", ["x" * NAME_BYTES_MAX, _PI * (NAME_BYTES_MAX // 2)])
def test_longest_name_fits(name):
    _trace(lambda x: jax_optireduce.psum(x, ("dp", "tp"), name=name))


@pytest.mark.parametrize(
    ("platform", "error"),
    [("tpu", jax_optireduce.UsageError), ("mps", NotImplementedError)],
)
def test_other_platforms_are_told_to_use_the_xla_backend(platform, error):
    mapped = jax.shard_map(
        lambda x: jax_optireduce.psum(x, ("dp", "tp")),
        mesh=_mesh(),
        in_specs=_P("dp", "tp"),
        out_specs=_P(),
    )
    traced = jax.jit(mapped).trace(jnp.ones((4, 2)))
    with pytest.raises(error, match="JAX_OPTIREDUCE_BACKEND=xla"):
        traced.lower(lowering_platforms=(platform,))


def test_second_init_is_told_to_shut_down_first():
    with pytest.raises(jax_optireduce.NotInitializedError, match="called before"):
        jax_optireduce.init()


def test_program_without_init_is_told_to_call_it():
    program = """
        import jax, jax_optireduce
        try:
            jax.vmap(lambda x: jax_optireduce.psum(x, "i"), axis_name="i")(
                jax.numpy.ones(2)
            )
        except jax_optireduce.NotInitializedError as error:
            assert "psum needs a communicator" in str(error)
            assert "jax_optireduce.init()" in str(error)
            print("taught")
        """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,  # Only a hang takes longer.
    )
    assert result.stdout.strip() == "taught"
