"""The tree of CodedReduce against the axes: `benchmarks/coded_tree.py`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_optireduce import coding

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def coded_tree(monkeypatch):
    """The module `coded_tree`."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import coded_tree

    return coded_tree


@pytest.mark.parametrize("shape", [(4, 1), (4, 2), (8, 2), (4, 3), (2, 4)])
def test_ranks_of_a_tree_compute_equally_much_and_together_the_batch(coded_tree, shape):
    tree = coded_tree.Tree(*shape)
    allocated = tree.allocation()
    assert {len(parts) for parts in allocated} == {tree.own}
    assert {part for parts in allocated for part, _ in parts} == set(range(tree.parts))


def _sent(tree, own, present, rank):
    """The coded sum that a rank of a tree sends; None if it has none in time."""
    if not present[rank]:
        return None
    if not (children := tree.children(rank)):
        return own[rank]
    came = [_sent(tree, own, present, child) for child in children]
    there = np.array([each is not None for each in came])
    rows = tree.code.matrix * there[:, None]
    decoder = np.linalg.pinv(rows).sum(axis=0) * there
    if not np.allclose(decoder @ rows, 1):
        return None
    return own[rank] + decoder @ np.array([each or 0.0 for each in came])


@pytest.mark.parametrize("shape", [(2, 2), (4, 1), (4, 2)])
def test_the_root_decodes_the_batch_where_the_figures_say_so(coded_tree, shape):
    tree = coded_tree.Tree(*shape)
    draw = np.random.default_rng(0)
    gradients = draw.standard_normal(tree.parts)
    own = [
        sum(weight * gradients[part] for part, weight in parts)
        for parts in tree.allocation()
    ]
    cases = draw.random((200, tree.ranks)) > 0.2
    exact = tree.exact(cases)
    assert 0 < exact[:, 0].sum() < len(cases)
    for present, has in zip(cases, exact, strict=True):
        total = _sent(tree, own, present, 0)
        assert has[0] == (total is not None)
        assert total is None or total == pytest.approx(gradients.sum())
        # Then the update passes through ranks in time.
        for rank in range(1, tree.ranks):
            assert has[rank] == (has[(rank - 1) // tree.fanout] and present[rank])


def test_axes_decode_where_the_package_does(coded_tree):
    axes = coded_tree.Axes((4, 4))
    cases = np.random.default_rng(0).random((50, 16)) > 0.2
    decode = [jax.jit(jax.vmap(code.coefficients)) for code in axes.plan.codes]
    for present, found in zip(cases, axes.exact(cases), strict=True):
        in_time = present.reshape(4, 4)
        by_columns = np.asarray(decode[0](jnp.asarray(in_time.T)))
        whole = (by_columns @ axes.plan.codes[0].matrix == 1).all(axis=1)
        by_rows = np.asarray(decode[1](jnp.asarray(in_time & whole)))
        exact = (by_rows @ axes.plan.codes[1].matrix == 1).all(axis=1)
        assert (found.reshape(4, 4) == (in_time & exact[:, None])).all()


def test_exact_shares_are_those_of_independent_ranks(coded_tree):
    # Each of the 7 other clusters of two lacks both ranks in 0.25 % of the steps.
    flat = coded_tree.share_exact(coded_tree.Axes((16,)), 0.05)
    assert flat == pytest.approx(0.9975**7, abs=2e-3)
    # The root has both clusters of its children; a leaf needs the root as well.
    share = coded_tree.share_exact(coded_tree.Tree(4, 1), 0.05)
    leaf = 0.95 * 0.9975  # its own cluster has itself
    assert share == pytest.approx((0.9975**2 + 4 * leaf) / 5, abs=2e-3)
    assert coded_tree.share_exact(coded_tree.Tree(4, 2), 0.0, draws=10) == 1


def test_axes_carry_as_much_as_the_package(coded_tree):
    for size in (2, 3, 4, 8):
        axes = coded_tree.Axes((size,))
        (code,) = axes.plan.codes
        shares = coding._shares(jnp.zeros(840, jnp.uint32), code)
        sent = coding._sent_shares(len(shares), code, jnp.uint32(1))
        carried = (size - 1) * len(sent) * shares.shape[1] / 840
        assert axes.received() == size - 1
        assert float(axes.received(2)) == pytest.approx(size - 1 + 2 * carried)
