"""Replicas: an assertion that names the leaf, and the drift of each rank."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_meshes import mesh_of
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce as jo

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
RANKS = 4


def _mesh(*shape, names=("dp",)):
    return mesh_of(shape, names)


def _drift(replicas, mesh=None, *, vma=True, **more):
    """Returns the drift of replicas, whose leaves have a leading axis of ranks."""

    def local(rows):
        return jo.replica_drift(jax.tree.map(lambda x: x[0], rows), "dp")

    mapped = jax.shard_map(
        local,
        mesh=mesh or _mesh(RANKS),
        in_specs=_P("dp"),
        out_specs=_P(),
        check_vma=vma,
        **more,
    )
    return np.asarray(jax.jit(mapped)(replicas))


def _replicas(drifts, shapes, seed=0):
    """Returns equal replicas plus noise of these relative sizes."""
    random = np.random.default_rng(seed)
    tree = {}
    for i, shape in enumerate(shapes):
        common = random.normal(size=shape)
        noise = random.normal(size=(len(drifts), *shape))
        scales = np.reshape(drifts, (-1,) + (1,) * len(shape))
        tree[f"leaf {i}"] = np.asarray(common + scales * noise, np.float32)
    return tree


def _true_drift(tree):
    flat = np.concatenate(
        [leaf.reshape(len(leaf), -1) for leaf in tree.values()], axis=1, dtype=float
    )
    distance = np.linalg.norm(flat - flat.mean(0), axis=1)
    return distance / np.linalg.norm(flat, axis=1)


@pytest.mark.parametrize("vma", [True, False], ids=["vma", "no vma"])
def test_the_drift_is_that_of_each_rank_within_a_third(vma):
    tree = _replicas([0.0, 1e-4, 1e-2, 1.0], [(300, 7), (5000,), (), (40, 3, 9)])
    drift = _drift(tree, vma=vma)
    assert drift.dtype == np.float32
    np.testing.assert_allclose(drift, _true_drift(tree), rtol=1 / 3)


@pytest.mark.parametrize("where", [np.s_[:, 3], np.s_[5, :], np.s_[7, 7], np.s_[:, :]])
def test_a_drift_is_found_wherever_in_a_leaf_it_is(where):
    tree = _replicas([0.0] * 3, [(256, 1024)])
    tree["leaf 0"][1][where] *= 1.01
    drift = _drift(tree, _mesh(3))
    np.testing.assert_allclose(drift, _true_drift(tree), rtol=1 / 3)


def test_equal_replicas_have_no_drift_whatever_their_number():
    for ranks in (1, 3, 4):
        tree = _replicas([0.0] * ranks, [(300, 7), (5000,)])
        assert _drift(tree, _mesh(ranks)).tolist() == [0.0] * ranks


def test_the_drift_ignores_integers_and_reports_nan():
    tree = _replicas([0.0] * RANKS, [(30,)])
    tree["count"] = np.arange(RANKS, dtype=np.int32)
    assert _drift(tree).tolist() == [0.0] * RANKS
    tree["leaf 0"][1, 0] = np.nan
    assert np.isnan(_drift(tree)).any()


def test_a_program_of_plain_jit_has_the_drift_of_sharded_parameters():
    mesh = _mesh(2, 2, names=("dp", "fast"))
    tree = _replicas([0.0, 0.1], [(64, 32)])
    placed = jax.tree.map(
        lambda x: jax.device_put(x, NamedSharding(mesh, _P("dp", None, "fast"))), tree
    )
    drift = _drift(placed, mesh, vma=False, axis_names={"dp"})
    np.testing.assert_allclose(drift, _true_drift(tree), rtol=1 / 3)


# --- Equality ------------------------------------------------------------------------


def _placed(rows, mesh, spec):
    """Returns an array whose copy on device i of the mesh is made from row i."""
    sharding = NamedSharding(mesh, spec)
    shape = rows[0].shape
    indices = sharding.devices_indices_map(shape)
    copies = [
        jax.device_put(row[indices[device]], device)
        for row, device in zip(rows, mesh.devices.flat, strict=True)
    ]
    return jax.make_array_from_single_device_arrays(shape, sharding, copies)


def test_equal_replicas_pass():
    mesh = _mesh(RANKS)
    array = np.arange(8.0, dtype=np.float32)
    tree = {
        "whole": _placed([array] * RANKS, mesh, _P()),
        "sharded": jax.device_put(array, NamedSharding(mesh, _P("dp"))),
        "key": jax.random.key(3),
        "number": 3,
        "half": jnp.ones((2, 2), jnp.bfloat16),
        "empty": jnp.ones((0, 2)),
        "nan": np.float32("nan"),
    }
    jo.assert_replicas_equal(tree)


def test_the_first_leaf_and_the_devices_that_differ_are_named():
    mesh = _mesh(RANKS)
    equal = np.ones((2, 2), np.float32)
    other = equal.copy()
    other[1, 1] = np.nextafter(np.float32(1), np.float32(2))
    at = {
        "a": _placed([equal] * RANKS, mesh, _P()),
        "b": [_placed([equal, equal, other, equal], mesh, _P())],
        "c": _placed([other, equal, equal, equal], mesh, _P()),
    }
    with pytest.raises(jo.ReplicasDifferError) as raised:
        jo.assert_replicas_equal(at, "after step 7")
    text = str(raised.value)
    assert text.startswith(
        "after step 7: replicas differ in leaf ['b'][0] (float32[2, 2]): "
        "rank 0 (device 2) from rank 0 (device 0), rank 0 (device 1), rank 0 (device 3)"
    ), text
    assert "so do 1 other leaves" in text
    assert isinstance(raised.value, AssertionError)


def test_the_copies_of_each_shard_are_compared():
    mesh = _mesh(2, 2, names=("dp", "fast"))
    array = np.arange(8.0, dtype=np.float32)
    other = array.copy()
    other[5] = 0
    placed = functools.partial(_placed, mesh=mesh, spec=_P("fast"))
    jo.assert_replicas_equal(placed([array] * 4))
    # Device 2 has the first half, which is equal.
    jo.assert_replicas_equal(placed([array, array, other, array]))
    with pytest.raises(jo.ReplicasDifferError, match=r"part \[4:8\].*device [13]"):
        jo.assert_replicas_equal(placed([array, array, array, other]))


def test_a_comparison_in_a_program_under_trace_is_an_error():
    with pytest.raises(jo.UsageError, match=r"leaf \['w'\].*outside of jax.jit"):
        jax.jit(jo.assert_replicas_equal)({"w": jnp.ones(2)})
