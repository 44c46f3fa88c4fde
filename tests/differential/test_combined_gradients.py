"""Coded gradients of several devices equal the gradient of the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax.sharding import PartitionSpec as P

import jax_optireduce
from jax_optireduce import UsageError, coding

RANKS, BATCH, DATASET = 4, 16, 100

# The error of a gradient near 1, in float32, through a cyclic code.
_ERROR_MAX = 5e-6


@pytest.fixture(params=["optireduce", "xla"], autouse=True)
def backend(request):
    """A session of this process, also with the collectives of JAX."""
    with jax_optireduce.init(backend=request.param):
        yield request.param


def _mesh(sizes):
    return mesh_of(sizes, ("a", "b")[: len(sizes)])


_DRAW = np.random.default_rng(0)
_X = _DRAW.standard_normal((DATASET, 5)).astype(np.float32)
_Y = _DRAW.standard_normal(DATASET).astype(np.float32)
_W = _DRAW.standard_normal(5).astype(np.float32)


def _combined(plan, *, moved=(0.0,) * RANKS, exact_steps=(0,) * RANKS, step=2):
    """Combines the gradients of ranks whose parameters are moved.

    Returns:
      The mean gradient, the parameters, the exact steps of each rank, and whether the
      gradient is exact; the missing ranks of the first axis as rank 0 sees them.
    """
    mesh = _mesh(plan.sizes)
    axes = mesh.axis_names

    def of_rank(moved, steps, x, y, weights):
        def gradient(carried):
            return jax.grad(lambda w: weights @ (x @ w - y) ** 2)(carried["w"])

        carried = {"w": jnp.asarray(_W) + moved, "n": jnp.int32(7)}
        state = coding.State(carried, jnp.zeros((), bool), steps[0])
        axis = axes if len(axes) > 1 else axes[0]
        mean, state, report = coding.combine(gradient, state, axis, plan)
        results = (mean, state.carried["w"], state.exact_steps, report.exact)
        return [jnp.asarray(r)[None] for r in (*results, report.missing[0])]

    every = [plan.examples(rank, step) for rank in range(RANKS)]
    chosen = np.concatenate(every)
    weights = np.concatenate([plan.weights(rank) for rank in range(RANKS)])
    spec = P(axes)
    mapped = jax.shard_map(
        of_rank, mesh=mesh, in_specs=(spec,) * 5, out_specs=spec, check_vma=False
    )
    arguments = (np.float32(moved), np.int32(exact_steps), _X[chosen], _Y[chosen])
    *results, missing = map(np.asarray, jax.jit(mapped)(*arguments, weights))
    return *results, missing[0], np.unique(chosen)


def _whole(w, batch):
    return np.asarray(jax.grad(lambda w: ((_X[batch] @ w - _Y[batch]) ** 2).mean())(w))


def _plan(sizes, code="repetition", late=1):
    return coding.plan(sizes, late=late, dataset=DATASET, batch=BATCH, code=code)


@pytest.mark.parametrize(
    ("sizes", "code", "late"),
    [((4,), "repetition", 1), ((4,), "cyclic", 1), ((2, 2), "repetition", (1, 0))],
)
def test_the_mean_gradient_is_that_of_the_batch(sizes, code, late):
    plan = _plan(sizes, code, late)
    mean, w, steps, exact, missing, batch = _combined(plan)
    assert len(batch) == BATCH
    assert exact.all()
    assert not missing.any()
    assert np.abs(mean - _whole(_W, batch)).max() < _ERROR_MAX
    assert (mean == mean[0]).all()
    assert (w == _W).all()
    assert (steps == 1).all()


@pytest.mark.parametrize("code", ["repetition", "cyclic"])
def test_a_rank_with_other_parameters_is_not_combined_and_takes_the_others(code):
    mean, w, _, exact, missing, batch = _combined(
        _plan((4,), code), moved=(0.0, 0.0, 0.5, 0.0)
    )
    assert missing.tolist() == [False, False, True, False]
    assert exact.all()
    assert np.abs(mean - _whole(_W, batch)).max() < _ERROR_MAX
    assert (w == _W).all()


def test_the_most_exact_steps_outvote_a_majority_that_has_missed_some():
    mean, w, steps, exact, missing, batch = _combined(
        _plan((4,)), moved=(0.5, 0.0, 0.5, 0.0), exact_steps=(8, 9, 8, 9)
    )
    assert missing.tolist() == [True, False, True, False]
    assert exact.all()
    assert np.abs(mean - _whole(_W, batch)).max() < _ERROR_MAX
    assert (w == _W).all()
    assert (steps == 10).all()


def test_beyond_the_spare_ranks_the_mean_is_over_the_parts_that_are_there():
    plan = _plan((4,))
    mean, w, steps, exact, missing, _ = _combined(
        plan, moved=(0.0, 0.0, 0.5, 0.5), exact_steps=(3, 3, 2, 2)
    )
    assert missing.tolist() == [False, False, True, True]
    assert not exact.any()
    expected = _whole(_W, plan.examples(0, 2))
    assert np.abs(mean - expected).max() < _ERROR_MAX
    # A cluster that has missed a step gets its own share from the other one.
    assert (w == _W).all()
    assert (steps == 3).all()


def test_a_plan_for_other_axes_is_an_error():
    mapped = jax.shard_map(
        lambda w: coding.combine(lambda c: c, coding.start(w), "a", _plan((2, 2)))[0],
        mesh=_mesh((4,)),
        in_specs=P(),
        out_specs=P(),
        check_vma=False,
    )
    with pytest.raises(UsageError, match=r"the axes \('a',\) of the sizes \(4,\)"):
        jax.jit(mapped)(_W)


def test_check_vma_is_an_error_that_names_the_correction():
    mapped = jax.shard_map(
        lambda w: coding.combine(lambda c: c, coding.start(w), "a", _plan((4,)))[0],
        mesh=_mesh((4,)),
        in_specs=P(),
        out_specs=P(),
    )
    with pytest.raises(UsageError, match="check_vma=False"):
        jax.jit(mapped)(_W)
