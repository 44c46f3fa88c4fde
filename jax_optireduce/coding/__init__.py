"""Gradient coding: the exact mean gradient without the late ranks.

Each rank computes the gradient of more than its share of a batch, so that the data of
a late or dead rank is in the gradients of others. The mean over the whole batch is
exact while at most `late` ranks of each cluster are missing, and a call does not wait
for these. The price is `late` + 1 times the computation. docs/coding.md explains the
idea and its limits.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_optireduce import _stats
from jax_optireduce._argument_types import Tree
from jax_optireduce._errors import UsageError
from jax_optireduce._program import allreduce, checks, stage_primitives
from jax_optireduce._program.call import AxisName, Call
from jax_optireduce._session import communicator
from jax_optireduce._stats import CollectiveStats
from jax_optireduce.coding import _codes, _words

__all__ = ["Plan", "Report", "State", "combine", "plan", "start"]

# Largest mean of (a B - 1)^2 of an exact decoding. Chosen: that of the coefficients in
# float32, 1e-11 for the worst code that `_codes` admits; without one part of 10,000 it
# is 1e-4.
_EXACT = 1e-9

# Words of a block before the contribution: two of a digest, one of an error and one of
# a number of steps, each in two marked halves.
_HEADER = 8

_CODES = ("repetition", "cyclic")


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The part of each batch whose gradient a rank computes.

    Made by `plan`; the same on all ranks.

    Attributes:
      codes: of each axis.
      dataset: number of examples of the data set.
      batch: examples of a batch, that of all ranks together.
      seed: of the order of the examples.
    """

    codes: tuple[_codes.Code, ...]
    dataset: int
    batch: int
    seed: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The ranks of each axis."""
        return tuple(len(code.matrix) for code in self.codes)

    @property
    def parts(self) -> int:
        """The number of parts of a batch."""
        return math.prod(code.matrix.shape[1] for code in self.codes)

    @property
    def load(self) -> float:
        """The share of each batch that a rank computes."""
        return len(self.of_rank(0)[0]) / self.parts

    def of_rank(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the parts of a rank, and their coefficients in its gradient.

        Args:
          rank: its index along the axes of the plan, in their order.

        Returns:
          int64 [n] and float64 [n].
        """
        indices = np.unravel_index(rank, self.sizes)
        row = np.ones(1)
        for code, index in zip(self.codes, indices, strict=True):
            row = np.outer(row, code.matrix[index]).ravel()
        parts = np.flatnonzero(row)
        return parts, row[parts]

    def examples(self, rank: int, step: int) -> np.ndarray:
        """Returns the examples that a rank computes in a step.

        The batches of an epoch have different examples; each epoch has another order.
        The last `dataset` % `batch` examples of an order are left out.

        Args:
          rank: see `of_rank`.
          step: number of the step, from 0.

        Returns:
          Indices into the data set, int64 [load * batch].
        """
        epoch, at = divmod(step, self.dataset // self.batch)
        order = _order(self.dataset, self.seed, epoch)
        batch = order[at * self.batch : (at + 1) * self.batch]
        return batch.reshape(self.parts, -1)[self.of_rank(rank)[0]].ravel()

    def weights(self, rank: int) -> np.ndarray:
        """Returns the weight of each of these examples in the loss of the rank.

        The gradient of sum(weights * losses) is the contribution of the rank. With
        code="repetition" all weights are equal, and the sum is the mean loss.

        Returns:
          Float32 [load * batch].
        """
        each = self.batch // self.parts
        coefficients = self.of_rank(rank)[1]
        return np.repeat(coefficients / each, each).astype(np.float32)

    def reassigned(self, lateness: Sequence[float] | np.ndarray) -> "Plan":
        """Returns the plan with the late ranks spread evenly over the clusters.

        Dynamic clustering: two slow ranks in one cluster of two stop it, in two
        clusters they stop none. The new plan is part of another program, which has to
        be compiled, so this is for ranks that remain slow. (The source assigns ranks in
        each step.)

        Source: B. Buyukates et al., *Gradient Coding with Dynamic Clustering for
        Straggler-Tolerant Distributed Learning*, 2021.

        Args:
          lateness: of each rank, any measure: the number of steps in which
            `Report.missing` has named it. All ranks give equal values.

        Raises:
          UsageError: the plan has several axes, a cyclic code, or another number of
            ranks.
        """
        (code, *others) = self.codes
        if others or not isinstance(code, _codes.Repetition):
            raise UsageError(
                "reassigned needs a plan over one axis with code='repetition'; others "
                "have no clusters to choose from."
            )
        measured = np.asarray(lateness, np.float64)
        if measured.shape != (len(code.matrix),):
            raise UsageError(
                f"reassigned needs one value of lateness for each of the "
                f"{len(code.matrix)} ranks, got the shape {list(measured.shape)}."
            )
        return dataclasses.replace(self, codes=(_codes.spread(code, measured),))


@functools.lru_cache(maxsize=2)
def _order(dataset: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(dataset)


def plan(
    ranks: int | Sequence[int],
    *,
    late: int | Sequence[int] = 1,
    dataset: int,
    batch: int,
    code: Literal["repetition", "cyclic"] = "repetition",
    seed: int = 0,
) -> Plan:
    """Plans the work of the ranks, for data that may lack the latest of them.

    Over one axis this is gradient coding (R. Tandon et al., ICML 2017). Over several
    axes it is the form of CodedReduce (A. Reisizadeh et al., 2019) in which every rank
    is the root of a tree, whose levels are the axes: ranks decode along the first axis,
    then the results of that along the next one. `late` ranks of each line of each axis
    may be missing, and a rank computes the product of (late + 1) / ranks of the batch
    instead of late + 1 shares of all ranks, but receives the gradients of fewer ranks.

    Args:
      ranks: number of ranks, or that of each axis.
      late: ranks of each cluster that may be missing, or that of each axis.
      dataset: number of examples of the data set.
      batch: examples of a batch, of all ranks together: a multiple of the number of
        parts, which the error message names.
      code: "repetition": ranks form clusters of `late` + 1 or more, and those of a
        cluster compute the same. `late` of each cluster may be missing. "cyclic": each
        rank computes `late` + 1 parts of as many as there are ranks, and any `late` of
        all ranks may be missing; the work is equal if `late` + 1 does not divide the
        number of ranks, and decoding multiplies rounding errors.
      seed: of the order of the examples.

    Raises:
      UsageError: an argument is invalid, or there is no such code.
    """
    sizes = _several("ranks", ranks)
    lates = _several("late", late)
    if len(lates) == 1:
        lates *= len(sizes)
    if len(lates) != len(sizes):
        raise UsageError(
            f"plan needs one value of late, or one for each of the {len(sizes)} "
            f"axes, got {len(lates)}."
        )
    checks.check_choice("code", code, _CODES)
    codes = []
    for size, spare in zip(sizes, lates, strict=True):
        if not 0 <= spare < size:
            raise UsageError(
                f"plan permits 0 to {size - 1} late ranks of {size}, got late={spare}."
            )
        make = _codes.repetition if code == "repetition" or spare == 0 else None
        codes.append((make or _codes.cyclic)(size, spare))
    made = Plan(tuple(codes), dataset, batch, seed)
    if batch < 1 or batch % made.parts:
        raise UsageError(
            f"plan needs a multiple of the {made.parts} parts as batch, got {batch}."
        )
    if dataset < batch:
        raise UsageError(
            f"plan needs a data set of at least the {batch} examples of a batch, "
            f"got dataset={dataset}."
        )
    return made


def _several(name: str, given: int | Sequence[int]) -> tuple[int, ...]:
    values = tuple(given) if isinstance(given, Sequence) else (given,)
    whole = all(isinstance(x, int | np.integer) for x in values)
    if not values or not whole:
        raise UsageError(f"plan needs whole numbers as {name}, got {given!r}.")
    return tuple(int(x) for x in values)


# --- In the step ----------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The values that a rank takes from step to step.

    Attributes:
      carried: the parameters and the state of the optimizer, any tree of arrays: all
        that the gradient depends on besides the data, equal on all ranks.
      behind: the others had passed the last call of this rank, bool []: it was late.
      exact_steps: steps with an exact gradient that led to `carried`, int32 [].
    """

    carried: Any
    behind: jax.Array
    exact_steps: jax.Array

    def replace(self, carried: Any) -> "State":
        """Returns the state with another `carried`: that after the step."""
        return dataclasses.replace(self, carried=carried)


class Report(NamedTuple):
    """The outcome of a combination on this rank.

    Attributes:
      exact: the gradient is the mean over the whole batch, bool [].
      error: the share of the batch that the gradient lacks, in [0, 1], float32 []: 0 if
        it is exact. For a cyclic code it is the mean square of its parts' errors.
      missing: the ranks that it does without, bool [ranks], for each axis: late, dead,
        or with another `State.carried`.
      stats: of the calls.
    """

    exact: jax.Array
    error: jax.Array
    missing: tuple[jax.Array, ...]
    stats: CollectiveStats


def start(carried: Any) -> State:
    """Returns the first state: `carried`, the same on all ranks."""
    return State(carried, jnp.zeros((), bool), jnp.zeros((), jnp.int32))


def combine(
    gradient: Callable[[Any], Tree],
    state: State,
    axis_name: AxisName,
    plan: Plan,
    *,
    step: Any = None,
    name: str | None = None,
) -> tuple[Tree, State, Report]:
    """Returns the mean gradient over the batch, without waiting for the late ranks.

    A call ends as soon as, of each cluster, all ranks but `late` have contributed, and
    otherwise by its deadline: `Options.deadline_s`, or `Options.deadline_max_s`. Then
    the result is the mean over the parts in time, and `Report.error` gives its
    share. Every rank decodes for itself, so no rank is a single point of failure, and
    none is removed. Late data is dropped, never carried into a later call.

    **Ranks that were late** return by themselves. A rank that the others have passed
    does not compute gradients until it is in time again. Each contribution has a
    digest of the `State.carried` that it was computed from, and only contributions with
    the same digest are combined: those with the most exact steps, and of these those of
    most ranks. A rank with another digest, which has missed a step, takes `carried`
    from the others, in the same call. So `carried` must be equal on all ranks, bit for
    bit, and follow from `carried` and the gradient alone.

    A rank receives the contributions of all ranks of the axis, in float32, and 2
    (`late` + 1) times `carried`: for few ranks, or for a plan over several axes.

    Call it inside `jax.shard_map` with check_vma=False, all axes manual, or `jax.pmap`;
    each rank is a process.

    Args:
      gradient: `carried` to the contribution of this rank, a tree of floating arrays:
        the gradient of sum(plan.weights(rank) * losses).
      state: from `start`, or of the last step.
      axis_name: a mapped axis, or the axes of the plan in its order.
      plan: the same on all ranks.
      step: see `CallArguments`.
      name: see `CallArguments`.

    Returns:
      The gradient; the state, of which a rank that has missed a step has the `carried`
      of the others; and the report. The next state is `state.replace(carried)`, with
      `carried` after the step.

    Raises:
      AxisError: an axis is not mapped here.
      UsageError: the plan does not fit the axes, a leaf is invalid, or JAX tracks
        variation (check_vma=True).
      NotInitializedError: `jax_optireduce.init` was not called.
    """
    kind = "combine"
    key = checks.checked_key(name, kind)
    call = dataclasses.replace(
        checks.checked_call(kind, axis_name, key, "lossy", mean=False),
        operation="all_gather",
    )
    number = checks.checked_step(step)
    _check_place(call, plan)
    vector, restored = _contribution(gradient, state)
    words = _words.carried_words(state.carried)
    no_error = jnp.zeros((), jnp.float32)
    mine = _Part(vector, words, ~state.behind, no_error, state.exact_steps)
    behind, missing, vectors = jnp.zeros((), bool), [], []
    for axis, code in zip(call.axes, plan.codes, strict=True):
        of_axis = dataclasses.replace(
            call,
            axes=(axis,),
            key=key if len(call.axes) == 1 else f"{key} {axis}",
            clusters=code.clusters,
            spare=code.late,
        )
        mine, absent, stats = _along_axis(mine, code, number, of_axis)
        behind |= _stats.passed(stats)
        missing.append(absent)
        vectors.append(stats)
    exact = mine.error <= _EXACT
    following = State(
        _words.carried_of(mine.words, state.carried), behind, mine.exact_steps + exact
    )
    report = Report(
        exact,
        mine.error,
        tuple(missing),
        _stats.from_vectors(vectors, [1] * len(vectors)),
    )
    return restored(mine.vector / plan.parts), following, report


class _Part(NamedTuple):
    """The contribution of a rank along an axis.

    Attributes:
      vector: the coded gradient, float32 [n].
      words: `carried`, uint32 [m], without a zero.
      valid: whether it contributes, bool [].
      error: of the vector, see `Report`.
      exact_steps: see `State`.
    """

    vector: jax.Array
    words: jax.Array
    valid: jax.Array
    error: jax.Array
    exact_steps: jax.Array


def _along_axis(
    mine: _Part, code: _codes.Code, step: jax.Array | None, call: Call
) -> tuple[_Part, jax.Array, jax.Array]:
    """Decodes the sum over one axis; returns it, the missing ranks, the statistics."""
    shares = _shares(mine.words, code)
    rank = lax.axis_index(call.axes)
    steps = mine.exact_steps.astype(jnp.uint32)
    own = jnp.concatenate(
        [
            _words.halves(
                jnp.stack([*_words.digest(mine.words), _words.bits(mine.error), steps])
            ),
            _words.nonzero(mine.vector),
            shares[_sent_shares(len(shares), code, steps)[:, rank]].ravel(),
        ]
    )
    blocks, stats = _gathered(jnp.where(mine.valid, own, 0), step, call)
    # Data that has not come is zero, and no word of a block is.
    whole = (blocks != 0).all(axis=1)
    header = _words.joined(blocks[:, :_HEADER])
    used, error = _agreeing(whole, header)
    vectors = lax.bitcast_convert_type(
        blocks[:, _HEADER : _HEADER + mine.vector.size], jnp.float32
    )
    coefficients = code.coefficients(used)
    covered = coefficients @ jnp.asarray(code.matrix, jnp.float32)
    lacking = ((covered - 1) ** 2).mean()
    total = _weighted_sum(vectors, coefficients, code.order)
    # The mean over the parts in time stands for all.
    share = covered.mean()
    scale = jnp.where((lacking <= _EXACT) | (share <= 0), 1, 1 / share)
    of_others = header[used.argmax(), 3]
    rows = blocks[:, _HEADER + mine.vector.size :]
    words, all_there = _joined_shares(rows, used, shares, code, of_others)
    takes = ~used[rank] & all_there
    part = _Part(
        total * scale,
        jnp.where(takes, words[: mine.words.size], mine.words),
        used.any(),
        jnp.where(used.any(), jnp.minimum(error + lacking, 1), 1),
        jnp.where(takes, of_others.astype(jnp.int32), mine.exact_steps),
    )
    return part, ~used, stats


def _agreeing(whole: jax.Array, header: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the ranks whose contributions are combined, and the error of these.

    They have the most exact steps, and the digest of most such ranks; of equally many
    that of the lowest rank. Estimates count only where nothing is exact.
    """
    errors = lax.bitcast_convert_type(header[:, 2], jnp.float32)
    least = jnp.where(whole, errors, jnp.inf).min()
    eligible = whole & (errors <= jnp.maximum(least, _EXACT))
    steps = header[:, 3]
    eligible &= steps == jnp.where(eligible, steps, 0).max()
    same = (header[:, None, :2] == header[None, :, :2]).all(axis=2)
    same &= eligible[:, None] & eligible[None, :]
    return same[same.sum(axis=1).argmax()], jnp.where(whole.any(), least, 0)


def _weighted_sum(
    vectors: jax.Array, coefficients: jax.Array, order: Sequence[int]
) -> jax.Array:
    """Returns the sum in a fixed order, so that it has the same bits on all ranks."""
    total = jnp.zeros_like(vectors[0])
    for rank in order:
        factor = coefficients[rank]
        total = jnp.where(factor != 0, total + factor * vectors[rank], total)
    return total


def _gathered(
    block: jax.Array, step: jax.Array | None, call: Call
) -> tuple[jax.Array, jax.Array]:
    """Returns the blocks of the ranks in time, uint32 [ranks, words]; zero if late."""
    if communicator.current(call.kind).options.backend == "xla":
        return lax.all_gather(block, call.axes), _stats.empty_vector()
    (blocks,), stats = stage_primitives.all_gather([block], step, call, varying=True)
    return blocks, stats


def _check_place(call: Call, plan: Plan) -> None:
    sizes = tuple(lax.axis_size(axis) for axis in call.axes)
    if sizes != plan.sizes:
        raise UsageError(
            f"combine got the axes {call.axes} of the sizes {sizes}, and the plan is "
            f"for {plan.sizes}."
        )
    if allreduce.is_typed(call.axes):
        raise UsageError(
            "combine needs jax.shard_map(..., check_vma=False): with check_vma=True "
            "JAX adds up the gradients of the ranks by itself."
        )


def _contribution(
    gradient: Callable[[Any], Any], state: State
) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """Returns the contribution as one vector, and the inverse."""
    shapes = jax.eval_shape(gradient, state.carried)
    leaves, treedef = jax.tree.flatten(shapes)
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise UsageError(f"combine needs floating gradients, got {leaf.dtype}.")
    ends = np.cumsum([leaf.size for leaf in leaves])

    def computed(carried: Any) -> jax.Array:
        found = jax.tree.leaves(gradient(carried))
        return jnp.concatenate([jnp.ravel(x).astype(jnp.float32) for x in found])

    def restored(vector: jax.Array) -> Any:
        parts = jnp.split(vector, ends[:-1])
        shaped = [
            part.reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return treedef.unflatten(shaped)

    nothing = jnp.zeros(ends[-1], jnp.float32)
    vector = lax.cond(state.behind, lambda _: nothing, computed, state.carried)
    return vector, restored


# --- Carried values -------------------------------------------------------------------


def _shares(words: jax.Array, code: _codes.Code) -> jax.Array:
    """Returns the words in rows: as many as sets of `late` + 1 ranks."""
    count = max(len(code.matrix) // (code.late + 1), 1)
    padding = jnp.ones(-words.size % count, jnp.uint32)
    return jnp.concatenate([words, padding]).reshape(count, -1)


def _sent_shares(count: int, code: _codes.Code, steps: jax.Array) -> jax.Array:
    """Returns the shares that each rank sends, int32 [sent, ranks].

    The first one has more than `late` senders, the ranks of a cluster if they have one.
    The second one is another of these in each step, so that a cluster that has missed a
    step gets its own share from another cluster.
    """
    ranks = len(code.matrix)
    first = np.empty(ranks, np.int32)
    first[list(code.order)] = np.arange(ranks) * count // ranks
    if count == 1:
        return jnp.asarray(first)[None]
    distance = 1 + (steps % np.uint32(count - 1)).astype(jnp.int32)
    return jnp.stack([jnp.asarray(first), (first + distance) % count])


def _joined_shares(
    rows: jax.Array,
    used: jax.Array,
    shares: jax.Array,
    code: _codes.Code,
    steps: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns the words of the ranks that are combined, and whether all have come.

    Args:
      rows: the shares that each rank has sent, uint32 [ranks, sent * n].
      used: the ranks that are combined, bool [ranks].
      shares: those of this rank, uint32 [shares, n].
      code: the code.
      steps: of the senders, uint32 [].
    """
    sent = _sent_shares(len(shares), code, steps)
    there = (sent == np.arange(len(shares))[:, None, None]) & used
    there = there.reshape(len(shares), -1)
    by_sent = rows.reshape(len(rows), len(sent), -1).swapaxes(0, 1)
    found = by_sent.reshape(-1, shares.shape[1])[there.argmax(axis=1)]
    return found.ravel(), there.any(axis=1).all()
