"""An array that its program keeps is read where it lies; others are summed in place."""

import jax
import numpy as np
import pytest
from device_meshes import mesh_of
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
_RANKS = 4


def _sum(x):
    return jax_optireduce.psum(x, "dp", name="sum")


def _program(function, **donation):
    mapped = jax.shard_map(
        function,
        mesh=mesh_of((_RANKS,), ("dp",)),
        in_specs=_P("dp"),
        out_specs=_P(),
        check_vma=False,
    )
    return jax.jit(mapped, **donation)


def _rows():
    rows = np.arange(_RANKS * 600, dtype=np.float32).reshape(_RANKS, 600)
    return rows, jax.device_put(
        rows, NamedSharding(mesh_of((_RANKS,), ("dp",)), _P("dp"))
    )


@pytest.mark.parametrize(
    ("function", "donation", "in_place"),
    [
        (_sum, {}, 0),
        (lambda x: _sum(x[0]), {}, 0),
        (jax.jit(_sum), {}, 0),
        (lambda x: _sum(x) + x[0], {}, 0),
        (_sum, {"donate_argnums": 0}, 1),
        (lambda x: _sum(2 * x), {}, 1),
        (lambda x: _sum({"kept": x, "computed": -x})["kept"], {}, 1),
        # Unknown in a loop.
        (lambda x: lax.fori_loop(0, 2, lambda _, x: _sum(x), x), {}, 1),
    ],
    ids=["argument", "row", "jit", "used", "donated", "computed", "tree", "loop"],
)
def test_only_an_array_that_the_program_may_change_shares_memory_with_its_sum(
    function, donation, in_place
):
    _, x = _rows()
    text = _program(function, **donation).lower(x).as_text()
    (call,) = [
        line for line in text.splitlines() if "@jax_optireduce_allreduce" in line
    ]
    assert call.count("output_operand_alias<") == in_place


@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded", "lossy"])
@pytest.mark.parametrize("ranks_used", [1, _RANKS])
def test_a_kept_array_is_unchanged_by_its_sum(mode, ranks_used):
    mesh = mesh_of((ranks_used,), ("dp",))
    rows = np.arange(ranks_used * 600, dtype=np.float32).reshape(ranks_used, 600)
    x = jax.device_put(rows, NamedSharding(mesh, _P("dp")))
    program = jax.jit(
        jax.shard_map(
            lambda x: jax_optireduce.psum(x[0], "dp", mode=mode, name="kept"),
            mesh=mesh,
            in_specs=_P("dp"),
            out_specs=_P(),
            check_vma=False,
        )
    )
    for _ in range(2):
        np.testing.assert_allclose(program(x), rows.sum(0), rtol=1e-4, atol=0.1)
    np.testing.assert_array_equal(x, rows)
