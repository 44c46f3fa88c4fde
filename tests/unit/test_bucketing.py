"""The plan of buckets: every leaf once, in order, of one dtype, within the limit."""

import itertools

import hypothesis
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jax_optireduce._program.bucketing import plan_buckets

_DTYPES = [np.dtype(d) for d in (np.float32, jnp.bfloat16, np.float64, np.int32)]
_SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)
_LEAVES = st.lists(st.tuples(_SHAPES, st.sampled_from(_DTYPES)), max_size=40)


def _plan(leaves, **arguments):
    shapes, dtypes = [shape for shape, _ in leaves], [dtype for _, dtype in leaves]
    return plan_buckets(shapes, dtypes, **arguments)


@hypothesis.given(_LEAVES, st.integers(1, 100_000))
def test_every_leaf_with_elements_is_in_exactly_one_bucket(leaves, limit):
    plan = _plan(leaves, bucket_bytes=limit)
    planned = sorted(i for bucket in plan for i in bucket.leaves)
    assert planned == [i for i, (shape, _) in enumerate(leaves) if np.prod(shape) > 0]


@hypothesis.given(_LEAVES, st.integers(1, 100_000))
def test_bucket_has_one_dtype_and_at_most_the_limit_unless_one_leaf(leaves, limit):
    for bucket in _plan(leaves, bucket_bytes=limit):
        members = [leaves[i] for i in bucket.leaves]
        (dtype,) = {dtype for _, dtype in members}
        assert bucket.elements == sum(int(np.prod(shape)) for shape, _ in members)
        assert len(members) == 1 or bucket.elements * dtype.itemsize <= limit


@hypothesis.given(_LEAVES, st.integers(1, 100_000))
def test_leaves_of_one_dtype_go_last_first(leaves, limit):
    plan = _plan(leaves, bucket_bytes=limit)
    for dtype in _DTYPES:
        order = [i for bucket in plan for i in bucket.leaves if leaves[i][1] == dtype]
        assert order == sorted(order, reverse=True)


@hypothesis.given(_LEAVES)
def test_no_two_neighbours_would_have_fitted_together(leaves):
    limit = 4096
    plan = _plan(leaves, bucket_bytes=limit)
    for dtype in _DTYPES:
        mine = [b for b in plan if leaves[b.leaves[0]][1] == dtype]
        for left, right in itertools.pairwise(mine):
            first_of_right = int(np.prod(leaves[right.leaves[0]][0]))
            assert (left.elements + first_of_right) * dtype.itemsize > limit


@hypothesis.given(_LEAVES, st.integers(1, 100_000))
def test_every_bucket_has_a_name_of_its_own(leaves, limit):
    suffixes = [bucket.suffix for bucket in _plan(leaves, bucket_bytes=limit)]
    assert len(set(suffixes)) == len(suffixes)


@hypothesis.given(_LEAVES, st.integers(1, 100_000))
def test_buckets_are_the_same_without_the_integers(leaves, limit):
    def buckets(leaves):
        plan = _plan(leaves, bucket_bytes=limit)
        return {
            bucket.suffix: [leaves[i] for i in bucket.leaves]
            for bucket in plan
            if not bucket.integral
        }

    floating = [leaf for leaf in leaves if leaf[1] != np.int32]
    assert buckets(leaves) == buckets(floating)


def test_empty_tree_has_no_bucket():
    assert _plan([], bucket_bytes=1) == ()
