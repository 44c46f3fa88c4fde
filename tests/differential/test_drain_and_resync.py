"""`drain` reaches its intended collective, and `resync` makes replicas equal."""

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import PartitionSpec

import jax_optireduce

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
_VMA = pytest.mark.parametrize("vma", [True, False], ids=["vma", "no vma"])


def _mapped(function: Callable[..., Any], *, vma: bool = True) -> Any:
    mesh = mesh_of((4,), ("dp",))
    return jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=_P("dp"), out_specs=_P(), check_vma=vma
        )
    )


def _tree() -> Any:
    """Two dtypes, and so two buckets, and a leaf that is in neither."""
    return {
        "a": jnp.ones((4, 3)),
        "b": [jnp.ones((4, 2, 2), jnp.bfloat16), jnp.ones((4,))],
        "nothing": jnp.ones((4, 0)),
    }


def _calls(program: Any, *arguments: Any) -> list[str]:
    """Returns the attributes that identify the calls of a program, sorted."""
    text = program.lower(*arguments).as_text()
    names = (
        "name",
        "mode",
        "wire_format",
        "fingerprint",
        "group_processes",
        "group_size",
    )
    found = []
    for line in text.splitlines():
        if "@jax_optireduce_allreduce" in line:
            wanted = [
                re.search(rf"\b{name} = ([^,]+|\"[^\"]+\")", line) for name in names
            ]
            found.append(" ".join(match.group(1) for match in wanted))
    return sorted(found)


def _allreduce(tree: Any, mode: str) -> Any:
    return jax_optireduce.average_gradients(tree, "dp", mode=mode, name="g")


def _in_backward(tree: Any, mode: str) -> Any:
    def loss(params: Any) -> Any:
        synced = jax_optireduce.sync_in_backward(params, "dp", mode=mode, name="g")
        return sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(synced))

    # Typed like the parameters, which vary here.
    return lax.pmean(jax.grad(loss)(tree), "dp")


def _with_optax(tree: Any, mode: str) -> Any:
    link = jax_optireduce.optax_average_gradients("dp", mode=mode, name="g")
    return link.update(tree, link.init(tree))[0]


def _pmean(tree: Any, mode: str) -> Any:
    return jax_optireduce.pmean(tree, "dp", mode=mode, name="g")


@pytest.mark.parametrize("wire_format", ["bfloat16", "int8"])
def test_drain_of_a_wire_format_is_of_the_same_collective(wire_format):
    how = {"axis_name": "dp", "name": "g", "wire_format": wire_format}
    tree = {"a": jnp.ones((4, 3)), "b": jnp.ones((4, 2, 2))}

    def in_backward(tree: Any) -> Any:
        def loss(params: Any) -> Any:
            synced = jax_optireduce.sync_in_backward(params, **how)
            return sum(leaf.sum() for leaf in jax.tree.leaves(synced))

        return jax.grad(loss)(tree)

    def with_optax(tree: Any) -> Any:
        link = jax_optireduce.optax_average_gradients(**how)
        return link.update(tree, link.init(tree))[0]

    def call_of(function: Callable[[Any], Any]) -> list[str]:
        return _calls(_mapped(function, vma=False), tree)

    (drain,) = call_of(functools.partial(jax_optireduce.drain, **how))
    assert f'"{wire_format}"' in drain
    averaged = functools.partial(jax_optireduce.average_gradients, **how)
    for other in (averaged, in_backward, with_optax):
        assert call_of(other) == [drain]


@_VMA
@pytest.mark.parametrize(
    ("function", "mode"),
    [
        *itertools.product(
            [_allreduce, _in_backward, _with_optax], ["agreed", "bounded"]
        ),
        # In mode "bounded" it is a mean of values, whose late data needs no drain.
        (_pmean, "agreed"),
    ],
)
def test_drain_in_another_program_is_of_the_same_collective(function, mode, vma):
    drain = functools.partial(jax_optireduce.drain, axis_name="dp", name="g", mode=mode)
    one = _mapped(lambda tree: function(tree, mode), vma=vma)
    other = _mapped(drain, vma=vma)
    calls = _calls(one, _tree())
    assert len(calls) == 2
    assert _calls(other, _tree()) == calls


def test_drain_in_the_same_program_is_of_the_same_collective():
    def step(tree: Any) -> Any:
        means = _allreduce(tree, "bounded")
        again = _allreduce(jax.tree.map(lambda x: x + 1, means), "bounded")
        rest = jax_optireduce.drain(again, "dp", name="g")
        return means, again, jax_optireduce.drain(rest, "dp", name="g")

    calls = _calls(_mapped(step, vma=False), _tree())
    assert len(calls) == 8
    assert calls[::2] == calls[1::2]
    assert len(set(calls)) == 4


def test_call_that_is_computed_again_is_drained_by_two_drains_in_one_program():
    @jax.checkpoint
    def block(x: Any) -> Any:
        total = jax_optireduce.psum(x, "dp", mode="bounded", name="again")
        return (total**2).sum()

    def step(x: Any) -> Any:
        value, gradient = jax.value_and_grad(block)(x)
        return value, lax.psum(gradient, "dp")

    def synchronize(x: Any) -> Any:
        rest = jax_optireduce.drain(x, "dp", name="again")
        return jax_optireduce.drain(rest, "dp", name="again")

    calls = _calls(_mapped(step), jnp.ones(4))
    assert len(set(calls)) == 2
    assert _calls(_mapped(synchronize), jnp.ones(4)) == calls


@_VMA
def test_drain_waits_for_the_result_it_is_given_and_returns_zeros(vma):
    def step(tree: Any) -> Any:
        means, before = jax_optireduce.average_gradients(
            tree, "dp", name="in order", return_stats=True
        )
        rest = jax_optireduce.drain(means, "dp", name="in order")
        return means, rest, before.sequence

    program = _mapped(step, vma=vma)
    tree = {"w": jnp.array([jnp.nan, 1.0, jnp.inf, 2.0]), "v": jnp.arange(8.0)}
    sequences = []
    for _ in range(3):
        means, rest, sequence = program(tree)
        np.testing.assert_array_equal(means["v"], [3.0, 4.0])
        np.testing.assert_array_equal(rest["w"], [0.0])
        np.testing.assert_array_equal(rest["v"], [0.0, 0.0])
        sequences.append(int(sequence))
    # Each drain had a number in between.
    assert np.diff(sequences).tolist() == [2, 2]


@_VMA
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded", "lossy"])
def test_drain_keeps_shapes_and_the_dtypes_of_pmean_or_psum(mode, mean, vma):
    how = {"mode": mode, "name": f"shapes, {mode}, {mean}, {vma}"}

    def drained(tree: Any) -> Any:
        counted = tree["a"][0].astype(jnp.int32)
        tree = {**tree, "count": counted} if mode != "lossy" else tree
        sums = jax_optireduce.psum(tree, "dp", **how)
        sums = {**sums, "key": jnp.ones(2, jnp.uint32), "rate": 0.5}
        return jax_optireduce.drain(sums, "dp", mean=mean, **how)

    rest = jax.block_until_ready(_mapped(drained, vma=vma)(_tree()))
    expected = {
        "a": ((1, 3), "float32"),
        "b": [((1, 2, 2), "bfloat16"), ((1,), "float32")],
        "count": ((3,), "float32" if mean else "int32"),
        "key": ((2,), "uint32"),
        "nothing": ((1, 0), "float32"),
        "rate": ((), "float32"),
    }
    if mode == "lossy":
        del expected["count"]
    assert jax.tree.map(lambda x: (x.shape, str(x.dtype)), rest) == expected
    assert not any(leaf.any() for leaf in jax.tree.leaves(rest))


def test_integers_besides_do_not_change_how_the_others_are_cut():
    with_counters = {**_tree(), "count": jnp.arange(4), "more": jnp.ones((4, 9), "i4")}

    def drain(tree: Any) -> Any:
        return jax_optireduce.drain(tree, "dp", name="g")

    def psum(tree: Any) -> Any:
        return jax_optireduce.psum(tree, "dp", mode="bounded", name="g")

    one, all_of_them = (_calls(_mapped(drain), t) for t in (_tree(), with_counters))
    assert set(one) < set(all_of_them)
    assert _calls(_mapped(psum), with_counters) == all_of_them


def test_drain_that_fits_no_call_names_the_nearest_one_in_one_process_too():
    how = {"axis_name": "dp", "name": "gradients of one process"}
    x = jnp.ones((4, 3))
    _mapped(lambda x: jax_optireduce.average_gradients(x, **how))(x)
    other = {**how, "name": "gradients of one proces"}
    with pytest.raises((ValueError, RuntimeError), match="'gradients of one process'"):
        jax.block_until_ready(_mapped(lambda x: jax_optireduce.drain(x, **other))(x))
    agreed = {**how, "mode": "agreed"}
    with pytest.raises((ValueError, RuntimeError), match="write mode='bounded'"):
        jax.block_until_ready(_mapped(lambda x: jax_optireduce.drain(x, **agreed))(x))
    jax.block_until_ready(_mapped(lambda x: jax_optireduce.drain(x, **how))(x))


def _grad_of(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.grad(lambda x: (reduce(x) ** 2).sum())


def _tangent_of(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.jvp(reduce, (x,), (x,))[1]


def _second_order(mode: str) -> Callable[[Any], Any]:
    def synced(x: Any) -> Any:
        return jax_optireduce.sync_in_backward(x, "dp", mode=mode, name="second")

    first = jax.grad(lambda x: (synced(x) ** 3).sum())
    return jax.grad(lambda x: first(x).sum())


@_VMA
@pytest.mark.parametrize("mode", ["agreed", "bounded"])
def test_derivative_whose_late_data_no_drain_reaches_is_refused(mode, vma):
    def psum(x: Any) -> Any:
        return jax_optireduce.psum(x, "dp", mode=mode, name="inside")

    refused = [_tangent_of(psum)]
    if vma:
        # The transpose of a typed sum is no call.
        _mapped(lambda x: lax.psum(_grad_of(psum)(x), "dp")).lower(jnp.arange(4.0))
    else:
        refused += [_grad_of(psum), _second_order(mode)]
    for function in refused:
        with pytest.raises(jax_optireduce.UsageError, match="is differentiated"):
            _mapped(function, vma=vma).lower(jnp.arange(4.0))


@_VMA
@pytest.mark.parametrize("mode", ["exact", "lossy"])
def test_derivative_that_leaves_nothing_in_flight_is_not_refused(mode, vma):
    def psum(x: Any) -> Any:
        return jax_optireduce.psum(x, "dp", mode=mode, name="inside")

    _mapped(_tangent_of(psum), vma=vma).lower(jnp.arange(4.0))
    gradient = _grad_of(psum)
    _mapped(lambda x: lax.psum(gradient(x), "dp"), vma=vma).lower(jnp.arange(4.0))


def test_replicas_can_be_made_equal_in_a_function_that_is_differentiated():
    def resync(x: Any) -> Any:
        return jax_optireduce.resync(x, "dp")

    _mapped(_grad_of(resync), vma=False).lower(jnp.arange(4.0))


def test_drain_has_no_gradient():
    def loss(x: Any) -> Any:
        x = jax_optireduce.average_gradients(lax.stop_gradient(x), "dp", name="none")
        return jax_optireduce.drain(x, "dp", name="none").sum()

    gradient = _mapped(jax.grad(loss), vma=False)(jnp.arange(4.0))
    np.testing.assert_array_equal(gradient, [0.0])


@_VMA
def test_resync_averages_floating_leaves_and_leaves_the_others_alone(vma):
    key = jax.random.key(3)

    def synchronize(own: Any) -> Any:
        tree = {"w": own, "half": own.astype(jnp.bfloat16), "count": jnp.int32(7)}
        return jax_optireduce.resync({**tree, "key": key, "rate": 0.5}, "dp")

    replicas = np.random.default_rng(2).integers(-8, 9, (4, 3)).astype(np.float32)
    synchronized = _mapped(synchronize, vma=vma)(jnp.asarray(replicas).reshape(12))
    np.testing.assert_array_equal(synchronized["w"], replicas.mean(0))
    np.testing.assert_array_equal(
        synchronized["half"].astype(np.float32), replicas.mean(0)
    )
    assert (int(synchronized["count"]), float(synchronized["rate"])) == (7, 0.5)
    assert jnp.array_equal(
        jax.random.key_data(synchronized["key"]), jax.random.key_data(key)
    )


@_VMA
def test_resync_takes_parameters_that_are_typed_as_equal(vma):
    def synchronize(own: Any, params: Any) -> Any:
        return jax_optireduce.resync(params, "dp"), own.sum()[None]

    mesh = mesh_of((4,), ("dp",))
    mapped = jax.shard_map(
        synchronize,
        mesh=mesh,
        in_specs=(_P("dp"), _P()),
        out_specs=(_P(), _P("dp")),
        check_vma=vma,
    )
    params = {"w": jnp.arange(3.0), "n": jnp.int32(1)}
    synchronized, _ = jax.jit(mapped)(jnp.ones(4), params)
    np.testing.assert_array_equal(synchronized["w"], params["w"])
    assert int(synchronized["n"]) == 1
