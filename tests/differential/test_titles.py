"""Titles: the instructions of a compiled program are named after the calls."""

import re

import jax
import jax.numpy as jnp
import pytest
from device_meshes import mesh_of
from jax.sharding import PartitionSpec

import jax_optireduce as jo

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec


def _instructions(function):
    """Returns the names of the calls of a compiled program, and their metadata."""
    mesh = mesh_of((2,), ("dp",))
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=_P("dp"), out_specs=_P("dp"), check_vma=False
    )
    text = jax.jit(mapped).lower(jnp.ones((2 * 2**18,))).compile().as_text()
    pattern = (
        r'%(\S+?)(?:\.\d+)? = .*custom_call_target="jax_optireduce_.*op_name="(.*?)"'
    )
    return dict(re.findall(pattern, text))


def test_a_call_has_its_name_its_mode_and_its_size():
    found = _instructions(lambda x: jo.psum(x, "dp", name="grads", mode="bounded"))
    assert list(found) == ["optireduce_grads_bounded_1_MiB"]
    # With the scopes of the program, and the title as it is.
    assert found.popitem()[1].endswith("/optireduce grads bounded 1 MiB")


def test_scopes_of_the_program_are_kept():
    def program(x):
        with jax.named_scope("sync"):
            return jo.psum(x[:10], "dp", name="a/b: c", mode="exact")

    assert list(_instructions(program).values()) == [
        "jit(program)/shard_map/sync/optireduce a/b: c exact 40 bytes"
    ]


def test_drains_stages_and_begun_calls_say_what_they_are():
    def program(x):
        x = jo.average_gradients(x, "dp", name="g", mode="bounded")
        x = jo.drain(x, "dp", name="g", mode="bounded") + x
        part = jo.psum_scatter(x, "dp", tiled=True, name="s")
        handle = jo.begin(part, "dp", name="h", mode="exact")
        return jo.end(handle)

    assert set(_instructions(program)) == {
        "optireduce_g_bounded_1_MiB",
        "optireduce_drain_g_bounded_1_MiB",
        "optireduce_reduce_scatter_s_exact_1_MiB",
        "optireduce_h_exact_512_KiB_begin",
        "optireduce_end",
    }
