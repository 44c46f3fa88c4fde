"""Errors of a mean of gradients under loss: estimators, codecs, and coded gradients.

    python benchmarks/estimators.py

8 ranks have vectors that agree partly: the mean of their squared norms is 4 times the
squared norm of their mean. Datagrams of 256 values are lost at random, on the way to
the owner of a shard, which has its own contribution. The first table has the mean
square of the error of the mean, relative to the square of the mean, by share of lost
datagrams:

    zero                    a lost value is zero
    count                   the mean over the values that came
    count, rotated          the same of rotated vectors: mode "lossy"
    EDEN, 1, 2, 4 bits      the same of values that EDEN quantises, without bias
    coded, 1, 3 late        count over clusters, of 2 or 4 ranks that sent the same: a
                            value is missing if it is lost from all ranks of a cluster

The second table has the same with errors averaged over 8 calls, which shows the bias.

Sources: S. Vargaftik et al., *EDEN: Communication-Efficient and Robust Distributed Mean
Estimation for Federated Learning*, ICML 2022; R. Tandon et al., *Gradient Coding*, ICML
2017.
"""

import argparse
import math
import sys

import numpy as np

RANKS, DISAGREEMENT = 8, 4.0

# Of a vector, a power of two, and of a datagram.
VALUES, DATAGRAM = 2**15, 256

LOSSES = (0.001, 0.01, 0.05, 0.1)

# Positive levels for values of N(0, 1). Source: S. Lloyd, J. Max.
LEVELS = {
    1: (0.7979,),
    2: (0.4528, 1.5104),
    4: (0.1284, 0.3880, 0.6568, 0.9423, 1.2562, 1.6180, 2.0690, 2.7326),
}


def vectors(draw: np.random.Generator) -> np.ndarray:
    """Returns heavy-tailed vectors of layers of several scales, [ranks, values]."""
    scales = np.repeat(10 ** draw.uniform(-1, 1, 64), VALUES // 64)
    common = draw.standard_t(3, VALUES) * scales
    noise = draw.standard_t(3, (RANKS, VALUES)) * scales
    noise -= noise.mean(axis=0)
    ratio = (noise**2).sum() / RANKS / (common**2).sum()
    return common + noise * math.sqrt((DISAGREEMENT - 1) / ratio)


def arrived(draw: np.random.Generator, senders: int, loss: float) -> np.ndarray:
    """Returns which values came, bool [senders, values]."""
    datagrams = draw.random((senders, VALUES // DATAGRAM)) >= loss
    return np.repeat(datagrams, DATAGRAM, axis=1)


def counted(values: np.ndarray, came: np.ndarray) -> np.ndarray:
    """Returns the mean over the values that came, 0 where none did."""
    return (values * came).sum(axis=0) / np.maximum(came.sum(axis=0), 1)


def hadamard(x: np.ndarray) -> np.ndarray:
    """Returns the orthonormal transform of rows whose length is a power of two."""
    rows, n = x.shape
    width = 1
    while width < n:
        pairs = x.reshape(rows, -1, 2, width)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        x = np.stack([a + b, a - b], axis=2).reshape(rows, n)
        width *= 2
    return x / math.sqrt(n)


def eden(x: np.ndarray, bits: int) -> np.ndarray:
    """Returns rows as their receiver gets them without loss, before rotating back."""
    levels = np.array(LEVELS[bits])
    bounds = (levels[1:] + levels[:-1]) / 2
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    z = x * math.sqrt(x.shape[1]) / norms
    quantised = np.sign(z) * levels[np.searchsorted(bounds, np.abs(z))]
    scale = (x**2).sum(axis=1, keepdims=True) / (quantised * x).sum(
        axis=1, keepdims=True
    )
    return scale * quantised


def rotated(
    x: np.ndarray, came: np.ndarray, bits: int | None, draw: np.random.Generator
) -> np.ndarray:
    """Returns the mean of rotated vectors, quantised unless `bits` is None.

    The rotation is the same for all ranks.
    """
    signs = draw.choice((-1.0, 1.0), VALUES)
    sent = hadamard(x * signs)
    if bits is not None:
        sent = eden(sent, bits)
    return hadamard(counted(sent, came)[None])[0] * signs


def estimates(
    x: np.ndarray, loss: float, draw: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns the estimate of the mean by each method."""
    came = arrived(draw, RANKS, loss)
    # The owner has its own.
    came[0] = True
    found = {"zero": (x * came).mean(axis=0), "count": counted(x, came)}
    found["count, rotated"] = rotated(x, came, None, draw)
    for bits in LEVELS:
        found[f"EDEN, {bits} bits"] = rotated(x, came, bits, draw)
    for late in (1, 3):
        size = late + 1
        clusters = x.reshape(RANKS // size, size, -1).mean(axis=1)
        present = np.logical_or.reduce(came.reshape(RANKS // size, size, -1), axis=1)
        found[f"coded, {late} late"] = counted(clusters, present)
    return found


def measure(loss: float, calls: int, trials: int) -> dict[str, float]:
    """Returns the relative error of the mean of some calls, over trials."""
    draw = np.random.default_rng(1)
    totals: dict[str, float] = {}
    for _ in range(trials):
        x = vectors(draw)
        mean = x.mean(axis=0)
        runs = [estimates(x, loss, draw) for _ in range(calls)]
        for name in runs[0]:
            error = np.mean([run[name] for run in runs], axis=0) - mean
            relative = float((error**2).sum() / (mean**2).sum())
            totals[name] = totals.get(name, 0.0) + relative / trials
    return totals


def main() -> int:
    """Prints both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=40, help="default 40")
    args = parser.parse_args()
    for calls in (1, 8):
        columns = {loss: measure(loss, calls, args.trials // calls) for loss in LOSSES}
        shares = " | ".join(f"{100 * loss:g} % lost" for loss in LOSSES)
        print(f"| mean of calls: {calls} | {shares} |")
        print("| --- |" + " --: |" * len(LOSSES))
        for name in columns[LOSSES[0]]:
            cells = [f"{columns[loss][name]:.1e}" for loss in LOSSES]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
