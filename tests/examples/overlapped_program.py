"""The steps of examples/overlapped_steps.py against a computation without calls.

In `exact`, rank 0 prints the largest difference of the parameters of all ranks to those
of the equations, which it computes alone, and every rank whether DeAR has the bits of
the plain step. In `bounded` with lost datagrams and a short deadline, prints the
largest difference between two ranks after the last update, and the calls with late
data. Then runs the program of the example with the arguments given.
"""

import sys
from argparse import Namespace

import images
import jax
import jax.numpy as jnp
import numpy as np
import overlapped_steps as steps
from jax.experimental import multihost_utils

import jax_optireduce

STEPS, ROWS, SEED = 12, 8, 3
RATE = 0.1
OVERLAPPED = ("ACCO", "DeAR")


def halves_of_all_ranks(split, ranks):
    """Returns 2 * STEPS + 1 lists with the half batch of each rank."""
    x = split.images.reshape(len(split), -1).astype(np.float32) / 16
    generators = [np.random.default_rng([SEED, rank]) for rank in range(ranks)]
    drawn = []
    for _ in range(2 * STEPS + 1):
        chosen = [random.integers(len(split), size=ROWS) for random in generators]
        drawn.append([(x[rows], split.labels[rows]) for rows in chosen])
    return drawn


@jax.jit
def gradient(layers, ranks):
    """Returns the mean gradients over the ranks."""
    found = [jax.grad(steps.loss_fn)(layers, batch) for batch in ranks]
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *found)


def whole(first, second):
    return [
        tuple(map(np.concatenate, zip(*pair, strict=True)))
        for pair in zip(first, second, strict=True)
    ]


def less(layers, gradients, share=1.0):
    return jax.tree.map(lambda p, g: p - RATE * share * g, layers, gradients)


def of_the_equations(step, layers, halves):
    """Returns the parameters after all steps and the last update."""
    p = layers
    if step == "ACCO":
        q = p
        for first, second in zip(halves[0:-1:2], halves[1::2], strict=True):
            g, h = gradient(q, first), gradient(p, second)
            q = less(p, g)
            p = less(less(p, g, 1 / 2), h, 1 / 2)
        return less(p, gradient(q, halves[-1]), 1 / 2)
    for first, second in zip(halves[0:-1:2], halves[1::2], strict=True):
        p = less(p, gradient(p, whole(first, second)))
    return p


def trained(step, mode, layers, split):
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    halves = steps.half_batches(mesh, split, ROWS, SEED)
    how = Namespace(step=step, mode=mode, steps=STEPS)
    layers, _ = steps.train(mesh, jax.tree.map(jnp.copy, layers), halves, how)
    return jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), layers)


def difference(tree, other):
    distances = jax.tree.map(lambda a, b: np.abs(a - b).max(), tree, other)
    return max(map(float, jax.tree.leaves(distances)))


def main():
    split = images.load(None).training
    with jax_optireduce.init():
        halves = halves_of_all_ranks(split, jax.process_count())
        layers = steps.first_layers(64, 16, 3, SEED)
        plain = trained("plain", "exact", layers, split)
        moved = difference(plain, layers)
        for step in ("plain", *OVERLAPPED):
            got = plain if step == "plain" else trained(step, "exact", layers, split)
            replicas = multihost_utils.process_allgather(got)
            if jax.process_index() == 0:
                wanted = of_the_equations(step, layers, halves)
                print("exact", step, difference(replicas, wanted) / moved, flush=True)
        same = jax.tree.map(np.array_equal, got, plain)
        print("equal bits", all(jax.tree.leaves(same)), flush=True)
        multihost_utils.sync_global_devices("exact")
    faults = {"loss": 0.2, "seed": jax.process_index()}
    late = {"deadline_s": 0.002, "faults": faults}
    with jax_optireduce.init(**late):
        for step in OVERLAPPED:
            before = jax_optireduce.stats()["stages_expired"]
            got = trained(step, "bounded", layers, split)
            expired = jax_optireduce.stats()["stages_expired"] - before
            replicas = multihost_utils.process_allgather(got)
            between = difference(replicas, jax.tree.map(lambda x: x[:1], replicas))
            print("bounded", step, between / moved, expired, flush=True)
    steps.main()


if __name__ == "__main__":
    sys.exit(main())
