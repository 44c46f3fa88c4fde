"""The parts that the trainings of `accuracy_train.py` and `tta_train.py` share."""

from collections.abc import Callable, Sequence
from typing import Any

import accuracy_models
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jax_optireduce

AXIS = "ranks"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)

MOMENTUM = 0.9


def rank_and_ranks() -> tuple[int, int]:
    """Returns the index of this process, and the number of processes."""
    return jax.process_index(), jax.process_count()


def mesh_of_ranks() -> Mesh:
    """Returns the mesh of all processes, with a device of each."""
    return jax.make_mesh((jax.process_count(),), (AXIS,), axis_types=(AxisType.Auto,))


def make_optimizer(task: accuracy_models.Task, name: str) -> Any:
    """Returns the optimizer by name, with the rate of the task."""
    rate = task.rates[name]
    return optax.sgd(rate, MOMENTUM) if name == "sgd" else optax.adamw(rate)


def replicated(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """Jits a function whose result every rank has."""
    return jax.jit(function, out_shardings=NamedSharding(mesh, EVERYWHERE))


def stepped(mesh: Mesh, function: Callable[..., Any]) -> Any:
    """Jits a step of a rank: (state, inputs, targets) -> (state, report).

    The report of the jitted step has a row of each rank.
    """

    def step(state: Any, *rows: jax.Array) -> tuple[Any, jax.Array]:
        state, report = function(state, *rows)
        return state, report[None]

    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(EVERYWHERE, DIVIDED, DIVIDED),
        out_specs=(EVERYWHERE, DIVIDED),
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=0)


def divided(mesh: Mesh, rows: Sequence[np.ndarray]) -> list[jax.Array]:
    """Makes global arrays from the part of each rank."""
    sharding = NamedSharding(mesh, DIVIDED)
    return [jax.make_array_from_process_local_data(sharding, part) for part in rows]


def of_this_rank(tree: Any) -> Any:
    """Returns the part of global arrays that this process holds."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def vector_of(params: Any) -> np.ndarray:
    """Returns the parameters of this rank in one vector."""
    leaves = jax.tree.leaves(of_this_rank(params))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def shares(stats: jax_optireduce.CollectiveStats) -> jax.Array:
    """Returns contributions and results missing, and results deferred, float32 [3]."""
    return jnp.stack(
        [stats.missing_contributions, stats.missing_results, stats.deferred]
    )
