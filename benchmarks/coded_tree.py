"""CodedReduce's tree against coding over the axes of a mesh, without a network.

    python benchmarks/coded_tree.py

Two layouts of gradient coding, in which `late` children of each node, or `late` ranks
of each cluster, may be missing:

  * a tree, as in CodedReduce (A. Reisizadeh et al., 2019): each node has `fanout`
    children. It computes a part of the batch, adds the decoded sum of its children, and
    sends that to its parent; the root has the gradient, and the update goes down. Here
    the root computes as well, so that no rank is idle;
  * the axes of `jax_optireduce.coding`: every rank decodes along each axis in turn.

The program counts, for each of them: the share of a batch that a rank computes, and
that of all ranks together; the arrays of the size of the gradient that the busiest rank
receives in a step; and the share of steps in which a rank has the exact gradient
without a wait for a late one. For that each rank is late in a step with a chance of
`--late-percent`; a late rank neither contributes nor forwards, and counts in the
average only where it is in time. The axes carry parameters and the momentum of SGD with
their gradients, for ranks that return; a tree, which sends parameters down, has no such
need. Exit code: 0.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jax_optireduce import coding
from jax_optireduce.coding import _codes

# Ranks that may be missing among the children of a node, or in a cluster.
LATE = 1
TREES = ((4, 2), (8, 2), (4, 3))
AXES = ((16,), (4, 4), (8, 8), (4, 4, 4))
# Parameters and momentum, in gradients.
CARRIED = 2
# Chosen: a standard error of the shares of 0.05 % at most.
DRAWS = 200_000

# A part of a batch, and its coefficient in the gradient of a rank.
Part = tuple[int, float]


# --- The tree -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tree:
    """A regular tree of ranks: rank 0 is the root, and k's children follow fanout * k.

    Attributes:
      fanout: children of a node, a multiple of LATE + 1.
      levels: of edges.
    """

    fanout: int
    levels: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return sum(self.fanout**level for level in range(self.levels + 1))

    @property
    def own(self) -> int:
        """The parts that each rank computes itself."""
        return (LATE + 1) ** self.levels

    @property
    def parts(self) -> int:
        """The parts of the batch: the smallest number that divides evenly."""
        return sum(
            self.fanout**level * (LATE + 1) ** (self.levels - level)
            for level in range(self.levels + 1)
        )

    @property
    def code(self) -> _codes.Repetition:
        """The code of the children of each node."""
        return _codes.repetition(self.fanout, LATE)

    def children(self, rank: int) -> range:
        """Returns the children of a rank; none of a leaf."""
        first = self.fanout * rank + 1
        return range(first, min(first + self.fanout, self.ranks))

    def allocation(self) -> list[list[Part]]:
        """Returns the parts that each rank computes.

        Source: the allocation of CodedReduce. A node keeps its own parts, and divides
        the others into blocks for its children, by the rows of the code.
        """
        kept: list[list[Part]] = [[] for _ in range(self.ranks)]

        def give(rank: int, given: list[Part]) -> None:
            kept[rank], rest = given[: self.own], given[self.own :]
            matrix = self.code.matrix
            size = len(rest) // matrix.shape[1]
            blocks = [rest[j * size :][:size] for j in range(matrix.shape[1])]
            for child, row in zip(self.children(rank), matrix, strict=False):
                coded = [
                    (part, coefficient * weight)
                    for block, weight in zip(blocks, row, strict=True)
                    for part, coefficient in block
                    if weight
                ]
                give(child, coded)

        give(0, [(part, 1.0) for part in range(self.parts)])
        return kept

    def load(self) -> Fraction:
        """Returns the share of a batch that the busiest rank computes."""
        return Fraction(max(map(len, self.allocation())), self.parts)

    def received(self) -> int:
        """Returns the arrays that the busiest rank receives: gradients, the update."""
        return max(len(self.children(rank)) + (rank > 0) for rank in range(self.ranks))

    def exact(self, present: np.ndarray) -> np.ndarray:
        """Returns where ranks have the exact gradient in time, as `present`.

        Args:
          present: the ranks in time, bool [draws, ranks].
        """
        sums = present.copy()
        for rank in reversed(range(self.ranks)):
            if children := self.children(rank):
                sums[:, rank] &= decodes(self.code, sums[:, list(children)])
        has = present.copy()
        has[:, 0] = sums[:, 0]
        for rank in range(1, self.ranks):
            has[:, rank] &= has[:, (rank - 1) // self.fanout]
        return has


# --- The axes -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Axes:
    """The ranks of a mesh, as `coding.plan` takes them."""

    sizes: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return math.prod(self.sizes)

    @property
    def plan(self) -> coding.Plan:
        """The plan, of a batch with one example for each part."""
        parts = math.prod(size // (LATE + 1) for size in self.sizes)
        return coding.plan(self.sizes, late=LATE, dataset=parts, batch=parts)

    def load(self) -> Fraction:
        """Returns the share of a batch that a rank computes."""
        return Fraction(len(self.plan.of_rank(0)[0]), self.plan.parts)

    def received(self, carried: int = 0) -> Fraction:
        """Returns the arrays that a rank receives along all axes.

        Args:
          carried: size of the carried values, in gradients. Of these a rank sends two
            shares, of as many as there are clusters.
        """
        total = Fraction(0)
        for size in self.sizes:
            shares = size // (LATE + 1)
            total += (size - 1) * (1 + Fraction(min(shares, 2), shares) * carried)
        return total

    def exact(self, present: np.ndarray) -> np.ndarray:
        """Returns where ranks have the exact gradient in time, as `present`.

        Args:
          present: the ranks in time, bool [draws, ranks].
        """
        in_time = present.reshape(-1, *self.sizes)
        sums = in_time
        for axis, code in enumerate(self.plan.codes, 1):
            whole = decodes(code, np.moveaxis(sums, axis, -1))
            sums = in_time & np.expand_dims(whole, axis)
        return sums.reshape(present.shape)


# --- Both -----------------------------------------------------------------------------


def decodes(code: _codes.Code, present: np.ndarray) -> np.ndarray:
    """Returns whether the ranks of each line decode it exactly, bool [...].

    Args:
      code: a repetition, whose parts each need one of their ranks.
      present: bool [..., ranks].
    """
    return (present @ (code.matrix != 0)).all(axis=-1)


def share_exact(layout: Tree | Axes, late: float, draws: int = DRAWS) -> float:
    """Returns the share of exact gradients among the ranks in time.

    Args:
      layout: of the ranks.
      late: chance that a rank is late in a step.
      draws: number of steps.
    """
    present = np.random.default_rng(1).random((draws, layout.ranks)) >= late
    return float(layout.exact(present).sum() / present.sum())


def row(layout: Tree | Axes, late: float) -> Sequence[str]:
    """Returns the cells of a layout."""
    if isinstance(layout, Tree):
        name = f"tree, {layout.levels} levels of {layout.fanout}"
        received, with_carried = layout.received(), layout.received()
    else:
        name = f"axes {' x '.join(map(str, layout.sizes))}"
        received, with_carried = layout.received(), layout.received(CARRIED)
    load = layout.load()
    return (
        name,
        str(layout.ranks),
        str(load),
        f"{float(load * layout.ranks):.1f}",
        str(received),
        f"{float(with_carried):.3g}",
        f"{100 * share_exact(layout, late):.1f} %",
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--late-percent", type=float, default=5, help="of the ranks of a step (5)"
    )
    args = parser.parse_args()
    print(
        "| layout | ranks | a rank computes | all compute, batches "
        "| the busiest receives | with `carried` | exact |"
    )
    print("| --- |" + " ---: |" * 6)
    layouts = [*(Tree(*shape) for shape in TREES), *map(Axes, AXES)]
    for layout in sorted(layouts, key=lambda each: each.ranks):
        print("|", " | ".join(row(layout, args.late_percent / 100)), "|")


if __name__ == "__main__":
    main()
