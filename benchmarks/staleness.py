"""The cost of late gradients, by share and age.

    python benchmarks/staleness.py

One process trains the models of `accuracy_models.py` as 4 ranks would: in each step a
random share of the elements of each rank's gradient is late by a number of steps, and
is added to the gradient of that step, as `bounded` does. The program prints a table of
the accuracies, and the share of the progress that lateness costs: 1 - n / steps, where
the training without late data has the same accuracy after n steps. It takes 10 minutes.
"""

import argparse
import dataclasses
import functools
import itertools
from typing import Any

import accuracy_models
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

RANKS = 4
MOMENTUM = 0.9
SHARES = (0.02, 0.1, 0.25, 0.5)
AGES = (1, 4)

# Steps between two evaluations of the training without late data.
EVERY = 10


@dataclasses.dataclass(frozen=True)
class Lateness:
    """Late data: this share of it, by this number of steps."""

    share: float
    age: int


@functools.partial(jax.jit, static_argnames=("task_name", "optimizer_name", "late"))
def trained(
    inputs: jax.Array,
    targets: jax.Array,
    seed: jax.Array,
    *,
    task_name: str,
    optimizer_name: str,
    late: Lateness,
) -> jax.Array:
    """Trains; returns the accuracy after each step that is a multiple of `EVERY`.

    Args:
      inputs: of each step and rank, [steps, RANKS, ...].
      targets: of these.
      seed: of the parameters and of the late elements, uint32 [].
      task_name: of `accuracy_models`.
      optimizer_name: "sgd" (with momentum) or "adamw".
      late: share and age of late data.
    """
    task = accuracy_models.load(task_name)
    rate = task.rates[optimizer_name]
    sgd = optimizer_name == "sgd"
    optimizer = optax.sgd(rate, MOMENTUM) if sgd else optax.adamw(rate)
    key = jax.random.key(seed)
    params = task.model.init(key, task.held_out_inputs[:1])
    flat, restored = ravel_pytree(params)

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, inner, queue, number = state
        gradients = jax.vmap(jax.grad(task.loss), in_axes=(None, 0, 0))(params, *batch)
        vectors = jax.vmap(lambda tree: ravel_pytree(tree)[0])(gradients)
        drawn = jax.random.uniform(jax.random.fold_in(key, number), vectors.shape)
        is_late = drawn < late.share
        mean = jnp.where(is_late, 0, vectors).mean(0) + queue[0]
        queue = jnp.concatenate(
            [queue[1:], jnp.where(is_late, vectors, 0).mean(0)[None]]
        )
        updates, inner = optimizer.update(restored(mean), inner, params)
        params = optax.apply_updates(params, updates)
        evaluated = jax.lax.cond(
            (number + 1) % EVERY == 0,
            lambda: task.evaluate(params)[0],
            lambda: jnp.float32(0),
        )
        return (params, inner, queue, number + 1), evaluated

    queue = jnp.zeros((late.age, flat.size))
    state = (params, optimizer.init(params), queue, 0)
    _, accuracies = jax.lax.scan(step, state, (inputs, targets))
    return accuracies[EVERY - 1 :: EVERY]


def batches(task_name: str, seed: int, steps: int) -> list[np.ndarray]:
    """Returns inputs and targets, [steps, RANKS, ...] each."""
    task = accuracy_models.load(task_name)
    of_ranks = [
        list(itertools.islice(task.batches(seed, rank, RANKS), steps))
        for rank in range(RANKS)
    ]
    return [
        np.stack([np.stack([step[part] for step in rank]) for rank in of_ranks], axis=1)
        for part in range(2)
    ]


def progress_lost(without: np.ndarray, accuracy: float) -> float:
    """Returns the share of the progress that is lost.

    Args:
      without: mean accuracies of the training without late data, each `EVERY` steps.
      accuracy: mean accuracy after all steps with late data.
    """
    best = np.maximum.accumulate(without)
    return 1 - float(np.searchsorted(best, accuracy) + 1) / len(best)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["digits", "text"])
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "adamw"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    print("| model, optimizer | late | by steps | accuracy | progress lost |")
    print("| --- | --: | --: | --: | --: |")
    for task_name, optimizer_name in itertools.product(args.tasks, args.optimizers):

        def curves(
            late: Lateness, task: str = task_name, how: str = optimizer_name
        ) -> Any:
            return np.stack(
                [
                    trained(
                        *batches(task, seed, args.steps),
                        np.uint32(seed),
                        task_name=task,
                        optimizer_name=how,
                        late=late,
                    )
                    for seed in range(args.seeds)
                ]
            )

        without = curves(Lateness(0.0, 1))
        spread = (
            f"{100 * without[:, -1].mean():.1f} ± {100 * without[:, -1].std():.1f} %"
        )
        print(f"| {task_name}, {optimizer_name} | 0 | | {spread} | |", flush=True)
        for share, age in itertools.product(SHARES, AGES):
            ends = curves(Lateness(share, age))[:, -1]
            lost = progress_lost(without.mean(0), ends.mean())
            print(
                f"| | {100 * share:g} % | {age} | {100 * ends.mean():.1f} ± "
                f"{100 * ends.std():.1f} % | {100 * max(lost, 0.0):.0f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
