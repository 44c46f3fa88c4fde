"""Reports: one per call, whatever the number of its buckets."""

import dataclasses

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jax_optireduce import CollectiveStats, _native
from jax_optireduce._stats import (
    VECTOR_SIZE,
    empty_vector,
    from_vectors,
    live_ranks,
)


def _vector(*head):
    return jnp.zeros(VECTOR_SIZE).at[: len(head)].set(jnp.array(head, jnp.float32))


def test_one_bucket_reports_its_own_figures():
    vector = _vector(0.25, 0.5, 1.5, 3, 2, 1, 7, 0.125, 2.5, 0.0625, 4, 3, 1)
    stats = from_vectors([vector], [10])
    expected = CollectiveStats(
        missing_contributions=0.25,
        missing_results=0.5,
        elapsed_s=1.5,
        retransmitted=3.0,
        late=2.0,
        slowest_process=1.0,
        sequence=7.0,
        deferred=0.125,
        deadline_s=2.5,
        in_flight=0.0625,
        live_processes=4.0,
        skipped=3.0,
        rounded=1.0,
    )
    assert jax.tree.map(float, stats) == expected


def test_buckets_are_weighted_by_elements_and_the_slowest_is_named():
    fast = _vector(0.0, 0.0, 1.0, 1, 0, 2, 5, 0.0, 9.0, 0.0, 4, 2, 1)
    slow = _vector(0.4, 0.8, 3.0, 4, 6, 0, 5, 0.2, 3.5, 0.4, 3)
    stats = jax.tree.map(float, from_vectors([fast, slow], [300, 100]))
    np.testing.assert_allclose(stats.missing_contributions, 0.1, rtol=1e-6)
    np.testing.assert_allclose(stats.missing_results, 0.2, rtol=1e-6)
    np.testing.assert_allclose(stats.deferred, 0.05, rtol=1e-6)
    np.testing.assert_allclose(stats.in_flight, 0.1, rtol=1e-6)
    assert (stats.elapsed_s, stats.deadline_s) == (3.0, 3.5)
    assert (stats.slowest_process, stats.live_processes) == (0.0, 3.0)
    assert (stats.retransmitted, stats.late, stats.sequence) == (5.0, 6.0, 5.0)
    assert stats.skipped == 2.0
    assert stats.rounded == 0.75


def test_call_that_moved_nothing_lost_nothing_and_waited_for_nobody():
    stats = from_vectors([], [])
    assert (float(stats.missing_results), float(stats.elapsed_s)) == (0.0, 0.0)
    assert float(stats.slowest_process) == -1.0
    assert float(empty_vector()[5]) == -1.0


@hypothesis.given(st.data())
def test_ranks_of_live_processes_are_counted_exactly(data):
    processes = data.draw(st.integers(1, 512), "processes")
    live = data.draw(st.integers(1, processes), "live")
    devices = data.draw(st.integers(1, 32), "devices of a process")
    vector = np.zeros(VECTOR_SIZE, np.float32)
    vector[[10, 13]] = live, processes
    assert float(live_ranks(vector, devices * processes)) == devices * live


def test_all_ranks_of_a_call_that_moved_nothing_are_alive():
    assert float(live_ranks(empty_vector(), 6)) == 6.0


def test_report_has_what_the_native_side_writes():
    fields = [field.name for field in dataclasses.fields(CollectiveStats)]
    assert (*fields, "processes", "passed") == _native.STATISTICS


def test_report_is_a_pytree_of_documented_scalars():
    stats = from_vectors([], [])
    leaves = jax.tree.leaves(stats)
    assert len(leaves) == VECTOR_SIZE - 2
    assert all(leaf.shape == () and leaf.dtype == jnp.float32 for leaf in leaves)
    for name in vars(stats):
        assert f"{name}: " in CollectiveStats.__doc__
