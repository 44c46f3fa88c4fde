"""Programs in the style of others work, or an error says what to write instead."""

import dataclasses
import logging
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce
from jax_optireduce._program import program_checks

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
PARTS, BATCH, LENGTH, WIDTH, WORDS = 3, 8, 6, 16, 11


def _mesh():
    return mesh_of((2, 2), ("data", "fsdp"))


class Decoder(nn.Module):
    """A layer of a causal decoder with logical axes."""

    @nn.compact
    def __call__(self, tokens):
        """Maps tokens [batch, length] to logits [batch, length, words]."""
        partitioned = nn.with_logical_partitioning
        normal = nn.initializers.normal(0.1)
        embed = partitioned(normal, ("words", "embed"))
        x = nn.Embed(WORDS, WIDTH, embedding_init=embed)(tokens)
        x = nn.with_logical_constraint(x, ("batch", None, "embed"))
        x += nn.MultiHeadDotProductAttention(2)(
            nn.LayerNorm()(x), mask=nn.make_causal_mask(tokens)
        )
        hidden = nn.Dense(4 * WIDTH, kernel_init=partitioned(normal, ("embed", "mlp")))
        hidden = nn.with_logical_constraint(hidden(x), ("batch", None, "mlp"))
        return nn.Dense(WORDS)(nn.gelu(hidden))


def _rules(batch):
    return [("batch", batch), ("embed", None), ("mlp", "fsdp"), ("words", None)]


def _loss(params, tokens):
    logits = Decoder().apply({"params": params}, tokens)[:, :-1]
    labels = jax.nn.one_hot(tokens[:, 1:], WORDS)
    return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), -1))


def _mean_of_parts(params, parts):
    """Returns the mean loss and gradients of microbatches [parts, batch, length]."""

    def add(total, part):
        one = jax.value_and_grad(_loss)(params, part)
        return jax.tree.map(jnp.add, total, one), None

    zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(add, zeros, parts)
    return jax.tree.map(lambda x: x / len(parts), total)


def _decoder():
    """Returns parameters with their logical axes resolved, and microbatches."""
    shape = (PARTS, BATCH, LENGTH)
    parts = jax.random.randint(jax.random.key(1), shape, 0, WORDS)
    boxed = Decoder().init(jax.random.key(0), parts[0])["params"]
    logical = nn.get_partition_spec(boxed)
    of_params = nn.logical_to_mesh_sharding(logical, _mesh(), _rules("data"))
    params = jax.device_put(nn.unbox(boxed), of_params)
    return params, jax.device_put(parts, NamedSharding(_mesh(), _P(None, "data")))


def _in_region(rules):
    def mean_gradients(params, parts):
        with nn.logical_axis_rules(rules):
            means = _mean_of_parts(params, parts)
        return jax_optireduce.average_gradients(means, "data", name="decoder")

    return jax_optireduce.over_slow_axis(
        mean_gradients, "data", batch_argnums=1, batch_spec=_P(None, "data")
    )


def test_a_decoder_with_logical_rules_accumulates_parts_in_one_call():
    params, parts = _decoder()
    with jax.set_mesh(_mesh()):
        program = jax.jit(_in_region(_rules(None)))
        loss, gradients = program(params, parts)
        calls = (
            program.lower(params, parts).as_text().count("@jax_optireduce_allreduce")
        )
        wanted_loss, wanted = jax.jit(_mean_of_parts)(params, parts)
    assert calls == 1
    np.testing.assert_allclose(loss, wanted_loss, rtol=1e-5)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6),
        gradients,
        wanted,
    )


def test_a_batch_is_divided_along_the_dimension_of_its_spec():
    divided = NamedSharding(_mesh(), _P(None, ("data", "fsdp")))
    parts = jax.device_put(jnp.arange(2 * 8.0).reshape(2, 8), divided)

    def means(parts):
        assert parts.shape == (2, 4)
        return jax_optireduce.pmean(parts.mean(1), "data")

    over = jax_optireduce.over_slow_axis(
        means, "data", batch_argnums=0, batch_spec=divided.spec, mesh=_mesh()
    )
    np.testing.assert_allclose(jax.jit(over)(parts), parts.mean(1))


@pytest.mark.parametrize(
    "spec", [_P(), _P("fsdp"), _P("data", "data"), "data"], ids=str
)
def test_a_spec_of_the_batch_without_the_axis_is_explained(spec):
    over = jax_optireduce.over_slow_axis(
        lambda x: x, "data", batch_argnums=0, batch_spec=spec, mesh=_mesh()
    )
    said = r"batch_spec=.* that names 'data': for .* PartitionSpec\(None, 'data'\)"
    with pytest.raises(jax_optireduce.UsageError, match=said):
        over(jnp.ones((2, 4)))


def test_logical_rules_that_name_the_axis_of_a_region_are_explained():
    params, parts = _decoder()
    said = r"constraint inside of this region names 'data'.*\('batch', None\) for"
    with (
        jax.set_mesh(_mesh()),
        pytest.raises(jax_optireduce.UsageError, match=said),
    ):
        jax.jit(_in_region(_rules("data")))(params, parts)


def test_a_constraint_that_names_the_axis_of_a_region_is_explained():
    def loss(params, x):
        x = jax.lax.with_sharding_constraint(x, _P("data", "fsdp"))
        return jnp.mean(params * x)

    value_and_grad = jax_optireduce.value_and_grad(loss, "data")
    with (
        jax.set_mesh(_mesh()),
        pytest.raises(jax_optireduce.UsageError, match="region names 'data'"),
    ):
        jax.jit(value_and_grad)(jnp.ones(4), jnp.ones((4, 4)))


def test_a_region_in_a_region_is_told_that_its_axis_is_manual():
    inner = jax_optireduce.over_slow_axis(lambda x: x, "data")
    outer = jax_optireduce.over_slow_axis(inner, "data")
    with (
        jax.set_mesh(_mesh()),
        pytest.raises(jax_optireduce.UsageError, match="are manual here already"),
    ):
        jax.jit(outer)(jnp.ones(4))


def test_other_errors_of_a_region_are_those_of_jax():
    def loss(params, x):
        return jnp.mean(params @ x)

    with (
        jax.set_mesh(_mesh()),
        pytest.raises(TypeError, match="dot_general"),
    ):
        jax.jit(jax_optireduce.value_and_grad(loss, "data"))(
            jnp.ones(3), jnp.ones((4, 4))
        )


# --- The style of Equinox: a module is a tree, with functions among its leaves --------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    """A dense layer."""

    weight: jax.Array
    count: jax.Array
    activation: Callable

    def __call__(self, x):
        return self.activation(x @ self.weight)


def _is_parameter(leaf):
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)


def _filter_grad(loss):
    """Differentiates by the parameters of a module; other leaves become None."""

    def gradient(module):
        params = jax.tree.map(lambda x: x if _is_parameter(x) else None, module)

        def of_params(params):
            merged = jax.tree.map(
                lambda p, x: x if p is None else p,
                params,
                module,
                is_leaf=lambda x: x is None,
            )
            return loss(merged)

        return jax.grad(of_params)(params)

    return gradient


@pytest.mark.parametrize("vma", [False, True])
def test_a_module_with_functions_among_its_leaves_is_synchronised_whole(vma):
    weight = jax.random.normal(jax.random.key(2), (5, 3))
    x = jax.random.normal(jax.random.key(3), (8, 5))
    module = Layer(weight, jnp.int32(7), jnp.tanh)

    def loss(module, x):
        return jnp.mean(module(x) ** 2)

    def step(weight, x):
        whole = dataclasses.replace(module, weight=weight)

        def synced(whole):
            whole = jax_optireduce.sync_in_backward(whole, "data")
            return loss(whole, x)

        return _filter_grad(synced)(whole).weight

    mesh = mesh_of((4,), ("data",))
    specs = {"in_specs": (_P(), _P("data")), "out_specs": _P()}
    mapped = jax.shard_map(step, mesh=mesh, check_vma=vma, **specs)
    got = jax.jit(mapped)(weight, x)
    wanted = _filter_grad(lambda module: loss(module, x))(module).weight
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)


# --- The style of Haiku: parameters and state of functions, mapped by pmap ------------


def _batch_norm(params, state, x, cross_replica_axis):
    """Normalises x [batch, width]; returns it, and the next running statistics."""
    mean, square = x.mean(0), (x**2).mean(0)
    if cross_replica_axis is not None:
        mean = jax.lax.pmean(mean, cross_replica_axis)
        square = jax.lax.pmean(square, cross_replica_axis)
    seen = jnp.stack([mean, square - mean**2])
    normal = (x - mean) * jax.lax.rsqrt(seen[1] + 1e-5)
    return normal * params, 0.9 * state + 0.1 * seen


def _pmapped(cross_replica_axis):
    def step(params, state, x):
        def loss(params):
            y, following = _batch_norm(params, state, x, cross_replica_axis)
            return jnp.mean((y - 1) ** 2), following

        (value, following), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        gradient = jax_optireduce.average_gradients(gradient, "data")
        # Updates of statistics, of which a late part joins a later step.
        change = jax_optireduce.pmean(following - state, "data", mode="bounded")
        value = jax_optireduce.pmean(value, "data", mode="bounded")
        return params - 0.1 * gradient, state + change, value

    mapped = jax.pmap(step, axis_name="data", devices=jax.devices()[:4])
    x = jax.random.normal(jax.random.key(4), (4, 8, 3))
    return mapped(jnp.ones((4, 3)), jnp.zeros((4, 2, 3)), x), x


def test_a_batch_norm_with_the_axis_of_the_calls_is_told_what_to_write(
    caplog, monkeypatch
):
    monkeypatch.setattr(program_checks, "_logged", set())
    with caplog.at_level(logging.WARNING, "jax_optireduce"):
        _pmapped("data")
    (line,) = caplog.messages
    assert "psum at test_ported_programs.py" in line
    assert "cross_replica_axis=None of a batch norm), and average" in line


def test_a_batch_norm_without_the_axis_averages_its_statistics_in_the_step(
    caplog, monkeypatch
):
    monkeypatch.setattr(program_checks, "_logged", set())
    with caplog.at_level(logging.WARNING, "jax_optireduce"):
        (_, state, _), x = _pmapped(None)
    assert caplog.messages == []
    seen = jnp.stack([x.mean(1), x.var(1)], 1).mean(0)
    for of_rank in state:
        np.testing.assert_allclose(of_rank, 0.1 * seen, rtol=1e-4, atol=1e-6)
