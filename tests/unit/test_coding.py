"""Plans of gradient coding: every permitted set of missing ranks decodes exactly."""

import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from jax_optireduce import UsageError, coding
from jax_optireduce.coding import _codes, _words


def _plan(ranks, late=1, **more):
    return coding.plan(ranks, late=late, dataset=1000, batch=240, **more)


def _missing_sets(code, draw=None, samples=200):
    """Every set of at most `late` missing ranks of each cluster, or samples of them."""
    clusters = np.array(code.clusters)
    members = [np.flatnonzero(clusters == c) for c in range(clusters.max() + 1)]
    choices = [list(itertools.combinations(m.tolist(), code.late)) for m in members]
    if np.prod([float(len(c)) for c in choices]) <= samples:
        return list(itertools.product(*choices))
    draw = draw or np.random.default_rng(len(clusters))
    return [[c[draw.integers(len(c))] for c in choices] for _ in range(samples)]


@pytest.mark.parametrize("late", [1, 2, 3])
def test_repetition_decodes_every_permitted_set_for_every_number_of_ranks(late):
    for ranks in range(2, 65):
        if late >= ranks:
            continue
        code = _codes.repetition(ranks, late)
        assert np.bincount(code.clusters).min() > late
        for missing in _missing_sets(code, samples=20):
            present = np.ones(ranks, bool)
            present[[rank for group in missing for rank in group]] = False
            found = code.coefficients(present)
            assert not found[~present].any()
            assert (found @ code.matrix == 1).all()


@hypothesis.given(st.integers(2, 64), st.data())
def test_repetition_decodes_whenever_each_cluster_has_a_rank(ranks, data):
    late = data.draw(st.integers(0, ranks - 1))
    code = _codes.repetition(ranks, late)
    present = np.array(
        data.draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks))
    )
    found = code.coefficients(present)
    covered = [
        present[np.array(code.clusters) == c].any() for c in sorted(set(code.clusters))
    ]
    assert (found @ code.matrix == np.array(covered)).all()
    assert not found[~present].any()


@pytest.mark.parametrize(
    ("ranks", "late"), [(2, 1), (3, 1), (4, 1), (5, 2), (6, 3), (7, 1), (8, 3), (12, 2)]
)
def test_cyclic_codes_decode_every_permitted_set(ranks, late):
    code = _codes.cyclic(ranks, late)
    assert (np.count_nonzero(code.matrix, axis=1) == late + 1).all()
    sets = _codes._present_sets(ranks, late)
    found = _codes._decoded(code.matrix, sets)
    assert np.abs(found @ code.matrix - 1).max() < 1e-9
    assert not found[~sets].any()
    assert np.abs(found).max() <= _codes._COEFFICIENT_MAX


def test_cyclic_codes_decode_in_a_program_and_estimate_beyond_it():
    code = _codes.cyclic(5, 2)
    sets = jnp.asarray(
        [[1, 0, 1, 0, 1], [0, 0, 1, 1, 1], [1, 0, 0, 0, 1], [0] * 5], bool
    )
    found = np.asarray(jax.jit(jax.vmap(code.coefficients))(sets))
    errors = ((found @ code.matrix - 1) ** 2).mean(axis=1)
    assert (errors[:2] < coding._EXACT).all()
    assert 0 < errors[2] < 1
    assert errors[3] == 1
    # No other coefficients are closer.
    rows = code.matrix * np.asarray(sets[2])[:, None]
    best = np.linalg.lstsq(rows.T, np.ones(5), rcond=None)[0]
    assert errors[2] == pytest.approx(((best @ rows - 1) ** 2).mean(), abs=1e-5)


@pytest.mark.parametrize(
    ("ranks", "late", "code"),
    [
        (4, 1, "repetition"),
        (5, 1, "repetition"),
        (6, 1, "cyclic"),
        (5, 2, "cyclic"),
        ((4, 4), 1, "repetition"),
        ((2, 6), (0, 2), "repetition"),
        ((4, 3), (1, 2), "cyclic"),
    ],
)
def test_contributions_add_up_to_the_batch_while_late_ranks_are_missing(
    ranks, late, code
):
    plan = coding.plan(ranks, late=late, dataset=3000, batch=720, code=code)
    gradients = np.random.default_rng(0).standard_normal(3000)
    total = np.zeros(plan.sizes)
    for rank in range(total.size):
        examples, weights = plan.examples(rank, 3), plan.weights(rank)
        assert len(examples) == len(weights) == round(plan.load * 720)
        total[np.unravel_index(rank, plan.sizes)] = weights @ gradients[examples]
    # Along each axis, with other ranks missing in each line.
    draw = np.random.default_rng(1)
    for of_axis in plan.codes:
        lines = total.reshape(len(of_axis.matrix), -1)
        decoded = []
        for line in lines.T:
            present = np.ones(len(line), bool)
            for group in _missing_sets(of_axis, draw, samples=1)[0]:
                present[list(group)] = False
            decoded.append(np.asarray(of_axis.coefficients(present)) @ line)
        total = np.array(decoded)
    batch = _batch(plan, 3)
    assert total.item() / plan.parts == pytest.approx(gradients[batch].mean(), abs=1e-5)


def _batch(plan, step):
    ranks = range(int(np.prod(plan.sizes)))
    return np.unique(np.concatenate([plan.examples(rank, step) for rank in ranks]))


def test_batches_of_an_epoch_have_different_examples():
    plan = coding.plan(4, late=1, dataset=70, batch=20, seed=5)
    epoch = np.concatenate([_batch(plan, step) for step in range(3)])
    assert len(np.unique(epoch)) == len(epoch) == 60
    assert set(_batch(plan, 0)) != set(_batch(plan, 3))
    again = coding.plan(4, late=1, dataset=70, batch=20, seed=5)
    assert (plan.examples(2, 7) == again.examples(2, 7)).all()


def test_load_is_late_plus_one_shares():
    assert _plan(4).load == 2 / 4
    assert _plan(6, 2).load == 3 / 6
    assert _plan(5, 2, code="cyclic").load == 3 / 5
    # CodedReduce: the product of the loads of the axes.
    assert _plan((4, 4)).load == 1 / 4


def test_reassigned_late_ranks_are_in_different_clusters():
    plan = coding.plan(12, late=2, dataset=120, batch=12)
    late = {0, 1, 2, 5}
    lateness = [9.0 if rank in late else 0.1 for rank in range(12)]
    (code,) = plan.reassigned(lateness).codes
    assert sorted(code.clusters[rank] for rank in late) == [0, 1, 2, 3]
    assert sorted(code.order) == list(range(12))
    assert np.bincount(code.clusters).tolist() == [3, 3, 3, 3]
    present = np.array([rank not in late for rank in range(12)])
    assert (code.coefficients(present) @ code.matrix == 1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"late": 4}, "permits 0 to 3 late ranks of 4"),
        ({"batch": 15}, "a multiple of the 2 parts"),
        ({"dataset": 8}, "at least the 16 examples"),
        ({"late": (1, 1)}, "one value of late, or one for each of the 1 axes"),
        ({"code": "cyclical"}, "Did you mean 'cyclic'"),
        ({"ranks": 24, "late": 5, "code": "cyclic", "batch": 24}, "sets of missing"),
        ({"ranks": 11, "late": 3, "code": "cyclic", "batch": 11}, "rounding errors"),
        ({"ranks": 2.5}, "whole numbers"),
    ],
)
def test_impossible_plans_are_errors_that_teach(arguments, message):
    given = {"ranks": 4, "dataset": 100, "batch": 16, **arguments}
    with pytest.raises(UsageError, match=message):
        coding.plan(given.pop("ranks"), **given)


def test_words_of_carried_values_have_no_zero_and_keep_their_bits():
    carried = {
        "w": jnp.asarray([0.0, -0.0, 1.5, jnp.nan, 3e-42], jnp.float32),
        "count": jnp.asarray([0, -1, 7], jnp.int32),
        "half": jnp.asarray([0.0, 1.0], jnp.bfloat16),
        "flag": jnp.asarray(False),
    }
    words = _words.carried_words(carried)
    assert (words != 0).all()
    found = _words.carried_of(words, carried)
    for name, leaf in carried.items():
        assert found[name].dtype == leaf.dtype
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(leaf))
    assert (_words.digest(words) != _words.digest(words[::-1])).any()
