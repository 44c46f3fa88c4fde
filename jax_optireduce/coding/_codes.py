"""Gradient codes: the parts of a batch for each rank, and the coefficients that decode.

A code is a matrix B [ranks, parts]. Rank i computes m_i = sum_j B[i, j] g_j, where g_j
is the gradient of part j. From the ranks that are present a decoder takes coefficients
a, zero for the others, with a B = 1: then sum_i a_i m_i is the sum of all g_j, exactly.

Source: R. Tandon et al., *Gradient Coding: Avoiding Stragglers in Distributed
Learning*, ICML 2017 (fractional repetition, random cyclic codes); N. Raviv et al.,
*Gradient Coding from Cyclic MDS Codes and Expander Graphs*, ICML 2018 (cyclic codes
from the roots of unity).
"""

import dataclasses
import functools
import itertools
import math
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_optireduce._errors import UsageError

# Sets of missing ranks with coefficients of their own. Chosen: a table of some 100 kB.
_SETS_MAX = 2000

# Largest decoding coefficient. Chosen: it multiplies the rounding errors of the
# contributions, and two of the seven digits of float32 are affordable.
_COEFFICIENT_MAX = 100.0

# Random cyclic codes that are compared. Chosen: more hardly improve the best one.
_CANDIDATES = 64

# Smallest singular value, relative to the largest, that counts in an estimate. Chosen:
# above the rounding errors of float32, 1e-7, times the size of the matrix.
_RANK_TOLERANCE = 1e-4


class Code(Protocol):
    """A code over the ranks of one axis.

    Attributes:
      late: ranks of each cluster that may be missing.
      matrix: float64 [ranks, parts].
      clusters: cluster of each rank, from 0.
      order: the ranks in the order of addition.
    """

    late: int
    matrix: np.ndarray
    clusters: tuple[int, ...]
    order: tuple[int, ...]

    def coefficients(self, present: jax.Array) -> jax.Array:
        """Returns the decoding coefficients, float32 [ranks].

        Args:
          present: bool [ranks].
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Repetition:
    """Fractional repetition: the ranks of a cluster compute the same part.

    The first one that is present stands for its cluster: no arithmetic, and the same
    bits from each of them.
    """

    late: int
    order: tuple[int, ...]

    @functools.cached_property
    def clusters(self) -> tuple[int, ...]:
        ranks = len(self.order)
        count = ranks // (self.late + 1)
        found = np.empty(ranks, int)
        found[list(self.order)] = np.arange(ranks) * count // ranks
        return tuple(found.tolist())

    @functools.cached_property
    def matrix(self) -> np.ndarray:
        return np.eye(max(self.clusters) + 1)[list(self.clusters)]

    @functools.cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """The rank at each place of a cluster, -1: none; the place of each rank."""
        clusters = np.array(self.clusters)
        sizes = np.bincount(clusters)
        ranks = np.full((len(sizes), sizes.max()), -1)
        places = np.empty(len(clusters), int)
        for cluster in range(len(sizes)):
            members = [rank for rank in self.order if clusters[rank] == cluster]
            ranks[cluster, : len(members)] = members
            places[members] = range(len(members))
        return ranks, places

    def coefficients(self, present: jax.Array) -> jax.Array:
        ranks, places = self._places
        here = present[ranks] & (ranks >= 0)
        first = here & (here.cumsum(axis=1) == 1)
        return first[np.array(self.clusters), places].astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Cyclic:
    """A cyclic code: rank i computes parts i to i + late, all ranks are one cluster."""

    late: int
    matrix: np.ndarray

    @property
    def clusters(self) -> tuple[int, ...]:
        return (0,) * len(self.matrix)

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(range(len(self.matrix)))

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """The sets of present ranks, and their coefficients."""
        present = _present_sets(len(self.matrix), self.late)
        return present, _decoded(self.matrix, present)

    def coefficients(self, present: jax.Array) -> jax.Array:
        sets, coefficients = self._table
        same = (jnp.asarray(sets) == present).all(axis=1)

        def listed() -> jax.Array:
            return jnp.asarray(coefficients, jnp.float32)[jnp.argmax(same)]

        def estimated() -> jax.Array:
            rows = jnp.asarray(self.matrix, jnp.float32) * present[:, None]
            return jnp.linalg.pinv(rows, rtol=_RANK_TOLERANCE).sum(axis=0) * present

        return lax.cond(same.any(), listed, estimated)


def repetition(ranks: int, late: int) -> Repetition:
    """Returns the code of clusters of `late` + 1 or more ranks."""
    return Repetition(late, tuple(range(ranks)))


def spread(code: Repetition, lateness: np.ndarray) -> Repetition:
    """Returns the code with its late ranks spread evenly over the clusters.

    Args:
      code: the code.
      lateness: of each rank, any measure.
    """
    places: dict[int, list[int]] = {}
    for place, rank in enumerate(code.order):
        places.setdefault(code.clusters[rank], []).append(place)
    order = [0] * len(code.order)
    waiting = list(np.argsort(-lateness, kind="stable"))
    # One rank for each cluster in turn, there and back.
    for turn in range(max(map(len, places.values()))):
        clusters = sorted(places, reverse=turn % 2 == 1)
        for cluster in clusters:
            if turn < len(places[cluster]):
                order[places[cluster][turn]] = int(waiting.pop(0))
    return Repetition(code.late, tuple(order))


def cyclic(ranks: int, late: int) -> Cyclic:
    """Returns a cyclic code with a good condition.

    Raises:
      UsageError: there is none for these numbers.
    """
    sets = sum(math.comb(ranks, missing) for missing in range(late + 1))
    remedy = f"write code='repetition', which needs {late + 1} ranks a cluster"
    if sets > _SETS_MAX:
        raise UsageError(
            f"a cyclic code of {ranks} ranks with late={late} has {sets} sets of "
            f"missing ranks, above {_SETS_MAX}; {remedy}."
        )
    present = _present_sets(ranks, late)
    if (ranks - late) % 2:
        candidates = iter([_from_roots_of_unity(ranks, late)])
    else:
        draw = np.random.default_rng(ranks * 1000 + late)
        candidates = (_random_rows(ranks, late, draw) for _ in range(_CANDIDATES))
    measured = [(_condition(matrix, present), matrix) for matrix in candidates]
    largest, matrix = min(measured, key=lambda pair: pair[0])
    if largest > _COEFFICIENT_MAX:
        raise UsageError(
            f"the best cyclic code of {ranks} ranks with late={late} multiplies "
            f"rounding errors by {largest:.0f}, above {_COEFFICIENT_MAX:.0f}; {remedy}."
        )
    return Cyclic(late, matrix)


def _from_roots_of_unity(ranks: int, late: int) -> np.ndarray:
    """Returns the rows of a cyclic code whose zeros are `late` frequencies.

    Real, since the frequencies are symmetric, which needs an odd ranks - late; the rows
    have the sum 1.
    """
    first = (ranks - late + 1) // 2
    zeros = np.exp(2j * np.pi * np.arange(first, first + late) / ranks)
    row = np.poly(zeros).real[::-1]
    return _shifted(np.tile(row / row.sum(), (ranks, 1)))


def _random_rows(ranks: int, late: int, draw: np.random.Generator) -> np.ndarray:
    """Returns the rows of a random cyclic code; some are badly conditioned."""
    checks = draw.standard_normal((late, ranks))
    checks[:, -1] = -checks[:, :-1].sum(axis=1)
    rows = np.ones((ranks, late + 1))
    for i in range(ranks):
        following = np.arange(i + 1, i + 1 + late) % ranks
        rows[i, 1:] = -np.linalg.solve(checks[:, following], checks[:, i])
    return _shifted(rows)


def _shifted(rows: np.ndarray) -> np.ndarray:
    """Returns [ranks, ranks] with row i at column i and the following ones."""
    ranks, width = rows.shape
    matrix = np.zeros((ranks, ranks))
    for i, row in enumerate(rows):
        matrix[i, np.arange(i, i + width) % ranks] = row
    return matrix


def _present_sets(ranks: int, late: int) -> np.ndarray:
    """Returns the sets with at most `late` missing ranks, bool [sets, ranks]."""
    sets = []
    for missing in range(late + 1):
        for chosen in itertools.combinations(range(ranks), missing):
            present = np.ones(ranks, bool)
            present[list(chosen)] = False
            sets.append(present)
    return np.array(sets)


def _decoded(matrix: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Returns the coefficients of each set, float64 [sets, ranks]."""
    inverses = np.linalg.pinv(matrix * present[:, :, None])
    return inverses.sum(axis=1) * present


def _condition(matrix: np.ndarray, present: np.ndarray) -> float:
    """Returns the largest |coefficient| times its row; infinite if a set fails."""
    found = _decoded(matrix, present)
    if np.abs(found @ matrix - 1).max() > 1e-6:
        return math.inf
    return float((np.abs(found) * np.abs(matrix).max(axis=1)).max())
