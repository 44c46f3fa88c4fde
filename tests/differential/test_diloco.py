"""DiLoCo takes the steps of data-parallel SGD where its definition says so."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_optireduce

EXAMPLES = Path(__file__).parents[2] / "examples"

RANKS, RATE, STEPS = 4, 0.05, 12


@pytest.fixture(scope="module")
def diloco():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import diloco

        yield diloco
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(params=["optireduce", "xla"])
def backend(request):
    """A session of this process, also with the collectives of JAX."""
    with jax_optireduce.init(backend=request.param):
        yield request.param


def _mesh():
    return mesh_of((RANKS,), ("data",))


def _parameters():
    keys = jax.random.split(jax.random.key(0), 2)
    hidden, out = (jax.random.normal(key, (6, 6)) / 3 for key in keys)
    return {"hidden": hidden, "out": out[:1], "bias": jnp.zeros(())}


def _loss(params, x, y):
    predicted = jnp.tanh(x @ params["hidden"]) @ params["out"][0] + params["bias"]
    return ((predicted - y) ** 2).mean()


def _batches():
    draw = np.random.default_rng(1)
    for _ in range(STEPS):
        x = draw.normal(size=(8 * RANKS, 6)).astype(np.float32)
        yield x, np.sin(x.sum(1))


def _apart(a, b):
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: abs(x - y).max(), a, b)))


def _data_parallel(rate=RATE):
    """Returns the parameters after each step of SGD with lax.pmean."""

    def step(params, x, y):
        gradients = lax.pmean(jax.grad(_loss)(params, x, y), "data")
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients)

    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P()}
    mapped = jax.shard_map(step, mesh=_mesh(), check_vma=False, **specs)
    trained = [_parameters()]
    for batch in _batches():
        trained.append(jax.jit(mapped)(trained[-1], *batch))
    return trained


def _training(diloco, *, momentum=0.0, delayed=False):
    return diloco.make_training(
        _loss,
        optax.sgd(RATE),
        _mesh(),
        outer_rate=1.0,
        outer_momentum=momentum,
        delayed=delayed,
    )


def test_one_local_step_and_outer_sgd_is_data_parallel_sgd(diloco, backend):
    del backend
    training, expected = _training(diloco), _data_parallel()
    outer, own = training.create(_parameters())
    for number, batch in enumerate(_batches(), 1):
        own, _ = training.inner_step(own, *batch)
        outer, own, _ = training.outer_step(outer, own)
        assert _apart(outer.params, expected[number]) < 1e-6
    assert _apart(expected[-1], _parameters()) > 0.1
    outer, own = training.settle(outer, own)
    assert _apart(outer.params, expected[-1]) < 1e-6


def test_local_steps_do_not_communicate(diloco, backend):
    del backend
    training = _training(diloco)
    _, own = training.create(_parameters())
    x, y = next(_batches())
    compiled = training.inner_step.lower(own, x, y).compile().as_text()
    for collective in ("all-reduce", "all-gather", "collective", "custom-call"):
        assert collective not in compiled
    # Each rank goes its own way.
    own, _ = training.inner_step(own, x, y)
    rows = np.asarray(own.params["hidden"])
    assert all(abs(rows[0] - row).max() > 1e-3 for row in rows[1:])


def test_a_round_averages_the_local_work(diloco, backend):
    del backend
    training = _training(diloco, momentum=0.5)
    outer, own = training.create(_parameters())
    params = velocity = None
    for number, batch in enumerate(_batches(), 1):
        own, _ = training.inner_step(own, *batch)
        if number % 4:
            continue
        before = _parameters() if params is None else params
        local = jax.tree.map(np.asarray, own.params)
        mean = jax.tree.map(lambda p, rows: p - rows.mean(0), before, local)
        if velocity is None:
            velocity = jax.tree.map(jnp.zeros_like, mean)
        velocity = jax.tree.map(lambda v, g: 0.5 * v + g, velocity, mean)
        params = jax.tree.map(lambda p, v, g: p - 0.5 * v - g, before, velocity, mean)
        outer, own, _ = training.outer_step(outer, own)
        assert _apart(outer.params, params) < 1e-6
        for rows in jax.tree.leaves(own.params):
            assert (np.asarray(rows) == np.asarray(rows)[:1]).all()


def test_a_delayed_mean_is_applied_a_round_later(diloco, backend):
    del backend
    training, first = _training(diloco, delayed=True), _parameters()
    outer, own = training.create(first)
    batches = _batches()
    own, _ = training.inner_step(own, *next(batches))
    after_one = jax.tree.map(np.asarray, own.params)
    outer, own, _ = training.outer_step(outer, own)
    # The mean is under way; each rank has its own work.
    assert _apart(outer.params, first) == 0
    assert _apart(own.params, after_one) < 1e-6
    own, _ = training.inner_step(own, *next(batches))
    last = jax.tree.map(np.asarray, own.params)
    outer, own, _ = training.outer_step(outer, own)
    means = jax.tree.map(lambda rows: rows.mean(0), after_one)
    assert _apart(outer.params, means) < 1e-6
    work = jax.tree.map(lambda a, b: b - a, after_one, last)
    expected = jax.tree.map(lambda mean, rows: mean + rows, means, work)
    assert _apart(own.params, expected) < 1e-6
    outer, own = training.settle(outer, own)
    final = jax.tree.map(lambda mean, rows: mean + rows.mean(0), means, work)
    assert _apart(outer.params, final) < 1e-6
    assert _apart(own.params, outer.params) == 0
    # The settled state goes on.
    own, _ = training.inner_step(own, *next(batches))
    training.outer_step(outer, own)
