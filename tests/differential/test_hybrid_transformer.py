"""The compiled step of examples/plain_jit_nnx.py, a transformer, on hybrid meshes."""

import functools
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from device_meshes import mesh_of
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jax_optireduce

pytestmark = pytest.mark.usefixtures("communicator")

_P = PartitionSpec
_COLLECTIVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


@pytest.fixture(scope="module")
def example() -> Any:
    """The module of the example."""
    folder = str(Path(__file__).parents[2] / "examples")
    sys.path.insert(0, folder)
    try:
        import plain_jit_nnx
    finally:
        sys.path.remove(folder)
    return plain_jit_nnx


def _of_pmean(loss_fn: Any) -> Any:
    """Returns what `jax_optireduce.value_and_grad` does, by `lax.pmean`."""

    def local(model: Any, tokens: Any, labels: Any) -> Any:
        found = nnx.value_and_grad(loss_fn)(model, tokens, labels)
        return jax.tree.map(lambda x: lax.pmean(x, "data"), found)

    return jax.shard_map(
        local,
        in_specs=(_P(), _P("data"), _P("data")),
        out_specs=_P(),
        axis_names={"data"},
        check_vma=False,
    )


def _text(example: Any, shape: tuple[int, int], *, ours: bool) -> str:
    """Returns the compiled step of the example."""
    mesh = mesh_of(shape, ("data", "fsdp"))
    with jax.set_mesh(mesh):

        @nnx.jit
        def create() -> Any:
            model = example.Model(nnx.Rngs(0))
            state = nnx.state(model)
            specs = nnx.get_partition_spec(state)
            nnx.update(model, lax.with_sharding_constraint(state, specs))
            return model

        model = create()
        optimizer = nnx.Optimizer(model, optax.sgd(0.02), wrt=nnx.Param)
        call = _of_pmean(example.loss_fn)
        if ours:
            call = jax_optireduce.value_and_grad(
                example.loss_fn,
                "data",
                batch_argnums=(1, 2),
                specs=jax.tree.map(lambda x: x.sharding, model),
                mode="bounded",
            )

        @nnx.jit
        def step(model: Any, optimizer: Any, tokens: Any, labels: Any) -> Any:
            loss, gradients = call(model, tokens, labels)
            optimizer.update(model, gradients)
            return loss

        rows = NamedSharding(mesh, _P(("data", "fsdp")))
        put = functools.partial(jax.device_put, device=rows)
        tokens = put(jnp.zeros((example.BATCH, example.LENGTH), jnp.int32))
        labels = put(jnp.zeros(example.BATCH, jnp.int32))
        return step.lower(model, optimizer, tokens, labels).compile().as_text()


def _groups(line: str) -> list[list[int]]:
    """Returns the groups of devices of a collective."""
    if pairs := re.search(r"source_target_pairs=\{(.*?\})\}", line):
        return [[int(n) for n in re.findall(r"\d+", p)] for p in pairs[1].split("},")]
    if listed := re.search(r"replica_groups=\{(\{.*?\})\}", line):
        return [[int(n) for n in re.findall(r"\d+", g)] for g in listed[1].split("},")]
    form = r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
    numbers = re.search(form, line)
    if numbers is None:
        # Along named axes: "mesh['axis_0'=2,'axis_1'=2], device_ids=([2,2]T(1,0))
        # {'axis_0'}": the devices, and the axes of a group.
        named = re.search(
            r"mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))? ?\{(.*?)\}",
            line,
        )
        assert named, line
        names = re.findall(r"'(\w+)'=(\d+)", named[1])
        sizes = [int(size) for _, size in names]
        ids = np.arange(np.prod(sizes))
        if named[2]:
            order = [int(n) for n in named[3].split(",")]
            ids = ids.reshape([int(n) for n in named[2].split(",")]).transpose(order)
        of_group = [i for i, (n, _) in enumerate(names) if f"'{n}'" in named[4]]
        rest = [i for i in range(len(names)) if i not in of_group]
        ids = ids.reshape(sizes).transpose([*rest, *of_group])
        return ids.reshape(-1, int(np.prod([sizes[i] for i in of_group]))).tolist()
    groups, devices, order = (
        [int(n) for n in (part or "").split(",") if n] for part in numbers.groups()
    )
    ids = np.arange(np.prod(devices)).reshape(devices)
    return ids.transpose(order or range(len(devices))).reshape(groups).tolist()


def _lines(text: str) -> list[str]:
    found = rf" (?:{_COLLECTIVES})\("
    return [line for line in text.splitlines() if re.search(found, line)]


@pytest.mark.parametrize(
    "shape", [(2, 2), pytest.param((4, 2), marks=pytest.mark.long)]
)
def test_no_collective_of_xla_crosses_the_slow_axis(example, shape):
    ours = _lines(_text(example, shape, ours=True))
    theirs = _lines(_text(example, shape, ours=False))
    assert len(ours) <= len(theirs)

    def crosses(line: str) -> bool:
        hosts = ([device // shape[1] for device in group] for group in _groups(line))
        return any(a != b for host in hosts for a, b in itertools.pairwise(host))

    assert not any(map(crosses, ours))
    # With `lax.pmean` the gradients do.
    assert any(map(crosses, theirs))
