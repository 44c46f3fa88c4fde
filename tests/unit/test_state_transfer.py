"""The state of a program on the host, and back on its devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_optireduce import UsageError
from jax_optireduce._session import state_transfer


def _state(value):
    """Returns one leaf of each kind."""
    mesh = jax.make_mesh((jax.local_device_count(),), ("d",))
    return {
        "sharded": jax.device_put(
            jnp.full((4 * mesh.size, 3), value), NamedSharding(mesh, P("d"))
        ),
        "replicated": jax.device_put(
            jnp.full(5, value, jnp.bfloat16), NamedSharding(mesh, P())
        ),
        "key": jax.random.key(value),
        "int": value,
        "float": float(value),
        "numpy": np.full((2, 3), value, order="F"),
        "uncommitted": jnp.int32(value),
        "empty": np.zeros((0, 3)),
        "bool": bool(value),
    }


def _moved(source, receiver):
    """Returns what the receiver makes of the bytes of the source."""
    sent, received = map(state_transfer.on_host, (source, receiver))
    assert state_transfer.summary(sent) == state_transfer.summary(received)
    pairs = zip(
        state_transfer._pieces(sent), state_transfer._pieces(received), strict=True
    )
    for ours, theirs in pairs:
        for part, place in zip(ours, theirs, strict=True):
            place[:] = part
    return state_transfer.rebuilt(receiver, received)


def test_every_kind_of_leaf_arrives_with_its_type_and_sharding(monkeypatch):
    monkeypatch.setattr(state_transfer, "_PIECE_BYTES", 8)
    source = _state(3)
    moved = _moved(source, _state(0))
    for name, leaf in source.items():
        assert type(moved[name]) is type(leaf), name
        if isinstance(leaf, jax.Array):
            assert moved[name].sharding == leaf.sharding, name
            assert moved[name].committed == leaf.committed, name
        ours, theirs = (
            jax.random.key_data(x) if name == "key" else x for x in (moved[name], leaf)
        )
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_a_difference_of_two_states_names_the_leaf():
    ours, theirs = ({"a": np.zeros(n), "b": 1} for n in (3, 4))
    summaries = [
        state_transfer.summary(state_transfer.on_host(s)) for s in (ours, theirs)
    ]
    assert state_transfer.difference(*summaries) == (
        "['a'] is float64[3] here, and ['a'] is float64[4] there"
    )
    assert not state_transfer.difference(summaries[0], summaries[0])


def test_a_leaf_that_is_no_number_is_refused_by_name():
    with pytest.raises(UsageError, match=r"the leaf \['name'\] of the state"):
        state_transfer.on_host({"name": "x"})
