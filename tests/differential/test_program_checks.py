"""The log names costs of a program that its results do not show."""

import logging
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import PartitionSpec

import jax_optireduce
from jax_optireduce._program import program_checks

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
PARTS = 3


@pytest.fixture
def lines(caplog, monkeypatch):
    """The lines of the log of a function that is lowered on four devices."""
    monkeypatch.setattr(program_checks, "_logged", set())

    def lowered(function, *, vma=False, **arguments):
        mesh = mesh_of((4,), ("dp",))
        specs = {"in_specs": (_P(), _P(None, "dp")), "out_specs": _P(), **arguments}
        program = jax.jit(jax.shard_map(function, mesh=mesh, check_vma=vma, **specs))
        with caplog.at_level(logging.WARNING, "jax_optireduce"):
            program.lower(jnp.ones(5), jnp.ones((PARTS, 8, 5)))
        return caplog.messages

    return lowered


def _loss(params, x):
    return jnp.mean((x * params) ** 2)


def _total(one, params, parts):
    """Adds up the losses and gradients of the parts."""

    def add(total, part):
        return jax.tree.map(jnp.add, total, one(params, part)), None

    zeros = jnp.zeros(()), jnp.zeros_like(params)
    return lax.scan(add, zeros, parts)[0]


def _averaged(params, part):
    means = jax.value_and_grad(_loss)(params, part)
    return jax_optireduce.average_gradients(means, "dp", name="g")


def test_a_scan_that_adds_up_the_results_of_a_call_is_named_once(lines):
    def program(params, parts):
        return _total(jax.checkpoint(_averaged), params, parts)

    (line,) = lines(program)
    assert line.startswith(
        "'g' is called 3 times in a run of a program, by the scan at"
    )
    assert "test_program_checks.py:" in line
    assert "docs/hybrid.md, Accumulated gradients" in line
    assert lines(program) == [line]


def test_a_synchronisation_inside_of_the_accumulated_loss_is_named(lines):
    def program(params, parts):
        def loss(params):
            def of_part(part):
                synced = jax_optireduce.sync_in_backward(params, "dp", name="s")
                return _loss(synced, part)

            return jnp.mean(lax.map(of_part, parts))

        return jax.grad(loss)(params)

    (line,) = lines(program, vma=True)
    assert line.startswith("'s' is called 3 times")


@pytest.mark.parametrize("vma", [False, True])
def test_one_call_after_the_scan_or_around_it_is_not_named(lines, vma):
    def after(params, parts):
        return _total(jax.value_and_grad(_loss), params, parts)

    def averaged(params, parts):
        return jax_optireduce.average_gradients(after(params, parts), "dp")

    def around(params, parts):
        def loss(params):
            synced = jax_optireduce.sync_in_backward(params, "dp")
            part_loss = jax.checkpoint(lambda part: _loss(synced, part))
            return jnp.mean(lax.map(part_loss, parts))

        return jax.grad(loss)(params)

    assert lines(around if vma else averaged, vma=vma) == []


def test_a_scan_over_steps_is_not_named_with_its_loss(lines):
    def program(params, batches):
        def step(carried, batch):
            params, losses = carried
            loss, gradients = jax.value_and_grad(_loss)(params, batch)
            gradients = jax_optireduce.average_gradients(gradients, "dp")
            losses += jax_optireduce.pmean(loss, "dp")
            return (params - 0.1 * gradients, losses), None

        return lax.scan(step, (params, jnp.zeros(())), batches)[0]

    assert lines(program) == []


def test_a_scan_over_layers_with_a_call_for_each_is_not_named(lines):
    def program(params, parts):
        def layer(x, weight):
            weight = jax_optireduce.sync_in_backward(weight, "dp")
            return jnp.tanh(x * weight), None

        layers = jnp.stack([params, params])
        return jax.grad(lambda layers: lax.scan(layer, parts[0], layers)[0].sum())(
            layers
        )

    assert lines(program) == []


def test_collectives_of_xla_over_the_axis_of_a_call_are_named_with_their_place(lines):
    def program(params, parts):
        loss, gradients = jax.value_and_grad(_loss)(params, parts[0])
        gradients = jax_optireduce.average_gradients(gradients, "dp")
        return lax.pmean(loss, "dp"), jax.jit(lambda x: lax.pmax(x, "dp"))(gradients)

    (line,) = lines(program)
    assert "collectives of XLA over it: psum at test_program_checks.py:" in line
    assert ", pmax at test_program_checks.py:" in line
    assert "jax_optireduce.psum or pmean" in line


def test_collectives_over_another_axis_are_not_named(lines):
    def program(params, parts):
        other = jax.vmap(lambda x: lax.psum(x, "batch"), axis_name="batch")(params)
        return jax_optireduce.average_gradients(other * parts.sum(), "dp")

    assert lines(program) == []


def test_axes_within_a_process_are_left_to_xla():
    of = [[0, 0], [1, 1], [2, 2]]
    devices = [[types.SimpleNamespace(process_index=i) for i in row] for row in of]
    mesh = types.SimpleNamespace(axis_names=("dp", "tp"), devices=np.array(devices))
    assert program_checks.slow_axes(mesh, ("dp", "tp")) == ("dp",)
    assert program_checks.slow_axes(mesh, ("tp",)) == ("tp",)


def test_batch_norm_of_flax_over_the_axis_is_named(lines):
    norm = nn.BatchNorm(use_running_average=False, axis_name="dp")

    def program(params, parts):
        variables = norm.init(jax.random.key(0), parts[0])
        y, _ = norm.apply(variables, parts[0], mutable=["batch_stats"])
        return jax_optireduce.average_gradients(params * y.sum(), "dp")

    (line,) = lines(program)
    assert "psum at" in line
    assert "axis_name=None, cross_replica_axis=None of a batch norm" in line


def test_a_further_rank_logs_nothing(lines, communicator, monkeypatch):
    monkeypatch.setattr(communicator, "rank", 1)
    assert lines(lambda params, parts: _total(_averaged, params, parts)) == []


def test_multi_steps_around_the_optax_transformation_are_an_error(lines):
    link = jax_optireduce.optax_average_gradients("dp", name="o")
    optimizer = optax.chain(link, optax.sgd(0.1))

    def program(wrapped):
        def step(params, parts):
            gradient = jax.grad(_loss)(params, parts[0])
            return wrapped.update(gradient, wrapped.init(params), params)[0]

        return step

    with pytest.raises(jax_optireduce.UsageError, match=r"each k-th step.*once: docs"):
        lines(program(optax.MultiSteps(optimizer, 3)))
    assert lines(program(optax.MultiSteps(optimizer, 1))) == []
    inside = optax.MultiSteps(optax.sgd(0.1), 3).gradient_transformation()
    assert lines(program(optax.chain(link, inside))) == []
