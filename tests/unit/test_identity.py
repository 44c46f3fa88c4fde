"""Names of collectives are independent of the directory and of earlier traces."""

import dataclasses
import functools
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax import lax

import jax_optireduce
from jax_optireduce import _native
from jax_optireduce._program import identity
from jax_optireduce._program.call import Call

_CALL = Call(kind="psum", key="k", axes=("dp",), mode="exact", wire_format="float32")

_PROGRAM = """
import jax
from jax_optireduce._program import identity

def layer(x):
    print(identity.call_site_key("psum"))
    return x

def train(x):
    return layer(layer(x))

def main():
    jax.jit(train)(1.0)

START
"""


def _keys(folder: Path, start: str) -> list[str]:
    folder.mkdir()
    path = folder / "program.py"
    path.write_text(textwrap.dedent(_PROGRAM).replace("START", start))
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=True, timeout=240
    )
    return result.stdout.split("\n")[:-1]


def _key_in(file: str) -> str:
    code = compile("\nkey = identity.call_site_key('psum')", file, "exec")
    namespace = {"identity": identity}
    exec(code, namespace)  # noqa: S102
    return namespace["key"]


def test_key_does_not_depend_on_the_folder_nor_on_who_started_the_trace(tmp_path):
    keys = _keys(tmp_path / "a", "main()")
    assert keys == _keys(tmp_path / "b", "(lambda: main())()")
    assert keys == ["program.py:6 psum"] * 2


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("/srv/a/train.py", "/srv/b/train.py"),
        ("/scratch/ipykernel_31/1234567.py", "/scratch/ipykernel_77/1234567.py"),
        ("<ipython-input-3-0123456789ab>", "<ipython-input-4-0123456789ab>"),
        ("/scratch/ipython-input-3-1234567.py", "/scratch/ipython-input-4-1234567.py"),
        ("<python-input-3>", "<python-input-4>"),
    ],
)
def test_key_does_not_depend_on_the_directory_nor_on_the_cells_run_before(here, there):
    assert _key_in(here) == _key_in(there)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("train.py", "eval.py"),
        ("<ipython-input-3-0123456789ab>", "<ipython-input-3-ba9876543210>"),
        ("/scratch/ipython-input-1234567.py", "/scratch/ipython-input-7654321.py"),
    ],
)
def test_key_tells_apart_files_and_cells(here, there):
    assert _key_in(here) != _key_in(there)


def _mapped(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.shard_map(
        function,
        mesh=mesh_of((2,), ("dp",)),
        in_specs=jax.sharding.PartitionSpec("dp"),
        out_specs=jax.sharding.PartitionSpec("dp"),
        check_vma=False,
    )


def _names(function: Callable[[Any], Any]) -> list[str]:
    """Returns the names of the collectives in the lowered program."""
    text = jax.jit(_mapped(function)).lower(jnp.ones((2, 5))).as_text()
    return re.findall(r'name = "([^"]*psum[^"]*)"', text)


def _total(x):
    return jax_optireduce.psum(x, "dp")


def _scanned(body):
    def step(carry, _):
        return carry + body(carry), None

    return lambda x: lax.scan(step, x, None, length=2)[0]


def _looped(body):
    return lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + body(y), x)


def _custom_vjp(body):
    function = jax.custom_vjp(body)
    function.defvjp(lambda x: (body(x), None), lambda _, ct: (body(ct),))
    return jax.grad(lambda x: function(x).sum())


def _rematerialised(body):
    function = jax.checkpoint(lambda x: body(jnp.sin(x)))
    return jax.grad(lambda x: function(x).sum())


_INNER = {
    "plain": lambda body: body,
    "jit": jax.jit,
    "jit in jit": lambda body: jax.jit(lambda x: jax.jit(body)(x) * 2),
    "checkpoint": _rematerialised,
    "scan": _scanned,
    "while": _looped,
    "cond": lambda body: lambda x: lax.cond(x[0, 0] > 0, body, lambda y: y, x),
    "custom_vjp": _custom_vjp,
    "vmap": lambda body: jax.jit(jax.vmap(body)),
    "grad": lambda body: jax.jit(jax.grad(lambda x: body(x).sum())),
}

_LOOKS = {
    "make_jaxpr": lambda function, x: jax.make_jaxpr(function)(x),
    "eval_shape": jax.eval_shape,
    "lower": lambda function, x: jax.jit(function).lower(x),
}


@pytest.mark.usefixtures("communicator")
@pytest.mark.parametrize("look", _LOOKS.values(), ids=_LOOKS)
@pytest.mark.parametrize("inner", _INNER.values(), ids=_INNER)
def test_name_does_not_depend_on_what_was_traced_before(inner, look):
    def names(*, looked_before):
        # A new function each time, since JAX caches traces.
        def body(x):
            return _total(x)

        function = inner(body)
        if looked_before:
            look(_mapped(lambda x: function(x) + 1), jnp.ones((2, 5)))
        return _names(lambda x: 2 * function(x))

    fresh = names(looked_before=False)
    assert fresh
    assert fresh == names(looked_before=True)


@pytest.mark.usefixtures("communicator")
def test_name_does_not_depend_on_what_was_traced_before_where_jax_makes_the_call():
    def names(*, looked_before):
        function = jax.jit(functools.partial(jax_optireduce.psum, axis_name="dp"))
        if looked_before:
            jax.make_jaxpr(_mapped(lambda x: function(x) + 1))(jnp.ones((2, 5)))
        return _names(lambda x: 2 * function(x))

    assert names(looked_before=False) == names(looked_before=True)


@pytest.mark.usefixtures("communicator")
@pytest.mark.parametrize("inner", _INNER.values(), ids=_INNER)
def test_name_does_not_depend_on_a_decorator(inner):
    def timed(function):
        def wrapper(x):
            return function(x)

        return wrapper

    assert _names(inner(timed(_total))) == _names(inner(_total))


@pytest.mark.usefixtures("communicator")
def test_calls_of_one_helper_are_told_apart_whatever_was_traced_before():
    def names(*, looked_before):
        first = jax.jit(lambda x: _total(x) + 1)
        second = jax.jit(lambda x: _total(_total(x) + 2))
        if looked_before:
            jax.make_jaxpr(_mapped(lambda x: second(x) - 1))(jnp.ones((2, 5)))
        return _names(lambda x: first(x) * second(x))

    fresh = names(looked_before=False)
    assert len(set(fresh)) == 3
    assert fresh == names(looked_before=True)


def test_calls_with_one_key_are_numbered_in_their_program():
    assert [identity.numbered("k", i) for i in range(3)] == ["k", "k #1", "k #2"]


def test_name_tells_apart_meshes_and_groups():
    layouts = [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1]]]
    names = {identity.collective_name("k", np.array(layout)) for layout in layouts}
    assert len(names) == len(layouts)


@pytest.mark.parametrize("key", ["x" * 1000, "\N{GREEK SMALL LETTER PI}" * 100, "x"])
def test_long_name_is_shortened_and_still_different(key):
    devices = np.array([[0, 1]])
    one, two = (identity.collective_name(key + end, devices) for end in ("1", "2"))
    assert one != two
    assert len(one.encode()) <= _native.NAME_BYTES_MAX


@pytest.mark.usefixtures("communicator")
def test_native_side_takes_names_up_to_the_limit_that_it_states(monkeypatch):
    limit = _native.NAME_BYTES_MAX
    total = _mapped(lambda x: jax_optireduce.psum(x, "dp", name="x" * limit))
    # Shortened to the limit, exactly.
    np.testing.assert_array_equal(
        jax.jit(total)(jnp.ones((2, 5))), 2 * jnp.ones((2, 5))
    )
    monkeypatch.setattr(_native, "NAME_BYTES_MAX", limit + 1)
    total = _mapped(lambda x: jax_optireduce.psum(x, "dp", name="x" * (limit + 1)))
    expected = f"from 1 to {limit} bytes, got {limit + 1}"
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=expected):
        jax.block_until_ready(jax.jit(total)(jnp.ones((2, 5))))


def test_fingerprint_depends_on_everything_that_ranks_must_agree_on():
    def fingerprint(shape=(2, 3), dtype="float32", **changed):
        devices = changed.pop("devices", np.arange(4).reshape(2, 2))
        call = dataclasses.replace(_CALL, **changed)
        return identity.fingerprint([jax.ShapeDtypeStruct(shape, dtype)], call, devices)

    variants = [
        fingerprint(),
        fingerprint(shape=(3, 2)),
        fingerprint(dtype="int32"),
        fingerprint(mode="lossy"),
        fingerprint(mode="lossy", rotated=True),
        fingerprint(devices=np.arange(4).reshape(1, 4)),
        fingerprint(devices=np.arange(4, 8).reshape(2, 2)),
        fingerprint(wire_format="int8"),
    ]
    assert len(set(variants)) == len(variants)
    assert fingerprint() == fingerprint()
    assert all(-(2**63) <= variant < 2**63 for variant in variants)


def test_description_names_the_call_and_shortens_a_long_list():
    leaves = [jax.ShapeDtypeStruct((i, 2), "float32") for i in range(1, 6)]
    call = dataclasses.replace(_CALL, mode="lossy", wire_format="int8", rotated=True)
    text = identity.describe("grads", leaves, call, group_size=4)
    assert text == (
        "'grads' (float32[1,2], [2,2], [3,2] and 2 more, 30 elements, "
        "mode lossy, as int8, rotated, 4 ranks)"
    )
