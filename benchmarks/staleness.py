"""The cost of late gradients, by share and age.

    python benchmarks/staleness.py

One process trains the models of `accuracy_models.py` as 4 ranks would: in each step a
random share of the elements of each rank's gradient is late by a number of steps, and
is added to the gradient of that step, as `bounded` does. The program prints a table of
the accuracies, and the share of the progress that lateness costs: 1 - n / steps, where
the training without late data has the same loss on held-out examples after n steps. It
takes 10 minutes.
"""

import argparse
import dataclasses
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

# Steps of a training. Chosen: the model still learns at their end.
STEPS = {"digits": 60, "text": 150}

# Steps between two evaluations.
EVERY = 5


@dataclasses.dataclass(frozen=True)
class Lateness:
    """Late data: this share of it, by this number of steps."""

    share: float
    age: int


def trained(
    task_name: str, optimizer_name: str, late: Lateness, seed: int, steps: int
) -> np.ndarray:
    """Trains; returns accuracy and loss on held-out examples, each `EVERY` steps.

    Args:
      task_name: of `accuracy_models`.
      optimizer_name: "sgd" (with momentum) or "adamw".
      late: share and age of late data.
      seed: of the parameters, the order of the examples and the late elements.
      steps: of the optimizer.
    """
    task = accuracy_models.load(task_name)
    rate = task.rates[optimizer_name]
    sgd = optimizer_name == "sgd"
    optimizer = optax.sgd(rate, MOMENTUM) if sgd else optax.adamw(rate)
    key = jax.random.key(seed)
    params = task.model.init(key, task.held_out_inputs[:1])
    flat, restored = ravel_pytree(params)

    @jax.jit
    def step(state: Any, inputs: jax.Array, targets: jax.Array) -> Any:
        params, inner, queue, number = state

        def gradient(part: Any) -> jax.Array:
            return ravel_pytree(jax.grad(task.loss)(params, *part))[0]

        # A batch of all ranks would be one convolution over groups, which is slow.
        vectors = jnp.stack([gradient((inputs[r], targets[r])) for r in range(RANKS)])
        drawn = jax.random.uniform(jax.random.fold_in(key, number), vectors.shape)
        held = jnp.where(drawn < late.share, vectors, 0)
        mean = (vectors - held).mean(0) + queue[0]
        queue = jnp.concatenate([queue[1:], held.mean(0)[None]])
        updates, inner = optimizer.update(restored(mean), inner, params)
        return optax.apply_updates(params, updates), inner, queue, number + 1

    evaluate = jax.jit(task.evaluate)
    state = (params, optimizer.init(params), jnp.zeros((late.age, flat.size)), 0)
    batches = [task.batches(seed, rank, RANKS) for rank in range(RANKS)]
    curve = []
    for number in range(1, steps + 1):
        inputs, targets = zip(*map(next, batches), strict=True)
        state = step(state, np.stack(inputs), np.stack(targets))
        if number % EVERY == 0:
            curve.append(np.asarray(evaluate(state[0])))
    return np.array(curve)


def progress_lost(without: np.ndarray, loss: float) -> float:
    """Returns the share of the progress that is lost.

    Args:
      without: mean losses of the training without late data, each `EVERY` steps.
      loss: mean loss after all steps with late data.
    """
    falling = np.minimum.accumulate(without)
    # Parts of the training, at equal distances; the loss falls.
    parts = np.arange(1, len(falling) + 1) / len(falling)
    return 1 - float(np.interp(-loss, -falling, parts)) if np.isfinite(loss) else 1.0


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "adamw"])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print("| model, optimizer | late | by steps | accuracy | progress lost |")
    print("| --- | --: | --: | --: | --: |")
    for training in itertools.product(args.tasks, args.optimizers):

        def curves(late: Lateness, training: Any = training) -> np.ndarray:
            return np.stack(
                [
                    trained(*training, late, n, STEPS[training[0]])
                    for n in range(args.seeds)
                ]
            )

        without = curves(Lateness(0.0, 1))
        print(f"| {', '.join(training)} | 0 | | {_percent(without)} | |", flush=True)
        for share, age in itertools.product(SHARES, AGES):
            late = curves(Lateness(share, age))
            lost = progress_lost(without[:, :, 1].mean(0), late[:, -1, 1].mean())
            cells = (f"{100 * share:g} %", age, _percent(late), f"{100 * lost:.0f} %")
            print("| |", " | ".join(map(str, cells)), "|", flush=True)


def _percent(curves: np.ndarray) -> str:
    """Returns the final accuracy: its mean and deviation over the seeds."""
    ends = 100 * curves[:, -1, 0]
    return f"{ends.mean():.1f} ± {ends.std():.1f} %"


if __name__ == "__main__":
    main()
