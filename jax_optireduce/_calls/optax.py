"""`average_gradients` as an Optax transformation."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_optireduce import _stats
from jax_optireduce._argument_types import Mode, WireFormat
from jax_optireduce._calls.collectives import reduce_tree
from jax_optireduce._calls.safeguards import (
    SafeguardState,
    check_arguments,
    is_callback_due,
    log_skips,
    vote,
)
from jax_optireduce._calls.safeguards import initial as initial_safeguards
from jax_optireduce._calls.safeguards import next_state as next_safeguards
from jax_optireduce._errors import UsageError
from jax_optireduce._jax import shard_types
from jax_optireduce._program import allreduce, checks
from jax_optireduce._program.call import AxisName, Call
from jax_optireduce._stats import CollectiveStats

if TYPE_CHECKING:
    import optax


class AverageGradientsState(NamedTuple):
    """State of `optax_average_gradients`: statistics of its calls, a pytree of scalars.

    As in `CollectiveStats`, values differ between ranks (except `calls` and
    `safeguards`), although JAX types them as equal. A checkpoint has the values of the
    process that wrote it.

    Attributes:
      calls: int32; calls since `init`, including those before a checkpoint.
      last: statistics of the last call.
      safeguards: decisions of `hadamard="auto"` and `skip_above`, equal on all ranks:
        `hadamard` (bool), `quiet_calls`, `skipped` (bool, the last call),
        `skips_in_a_row` and `skips`. Constant without these arguments.
      missing_contributions: mean over the calls, in [0, 1], as the other shares.
      missing_results: mean over the calls.
      deferred: mean over the calls.
      elapsed_s: mean over the calls, in seconds.
      largest_missing_results: maximum over the calls.
      largest_elapsed_s: maximum over the calls, in seconds.
    """

    calls: jax.Array
    last: CollectiveStats
    safeguards: SafeguardState
    missing_contributions: jax.Array
    missing_results: jax.Array
    deferred: jax.Array
    elapsed_s: jax.Array
    largest_missing_results: jax.Array
    largest_elapsed_s: jax.Array


def optax_average_gradients(
    axis_name: AxisName,
    *,
    mode: Mode | None = None,
    wire_format: WireFormat = "float32",
    name: str | None = None,
    specs: Any = None,
    fast_axis: AxisName | None = None,
    hadamard: bool | Literal["auto"] | None = None,
    skip_above: float | None = None,
    on_repeated_skips: Callable[[int], None] | None = None,
) -> "optax.GradientTransformationExtraArgs":
    """Averages the gradients over a mapped axis; put it first in the chain.

    Example::

        optimizer = optax.chain(optax_average_gradients("data"), optax.sgd(0.1))
        state = optimizer.init(params)  # state[0] is that of this transformation

    In mode "lossy", `hadamard="auto"` and `skip_above` make every call wait for every
    rank: the ranks vote, in mode "exact", so a dead rank is an error. Without these
    arguments no vote takes place.

    Differs from `jax.lax.pmean` as `average_gradients` does.

    Args:
      axis_name: see `psum`.
      mode: see `CallArguments`.
      wire_format: see `CallArguments`.
      name: see `CallArguments`; None takes the file and line of this call.
      specs: see `CallArguments`; those of the parameters.
      fast_axis: see `CallArguments`.
      hadamard: mode "lossy" only: whether calls are rotated, which distributes loss
        over all entries. "auto" rotates after a call that lost more than 2 %, until 100
        consecutive calls have lost less than 1 % (mean over the ranks). None is
        True.
      skip_above: mode "lossy" only: share of the contributions or of the results, from
        0 to below 1. A call in which any rank misses more is skipped on every rank: the
        updates are zeros, and `safeguards.skipped` of the state is True. Later
        optimizers of the chain treat the zeros as a gradient.
      on_repeated_skips: called with the number of consecutive skips at 50, 100 and so
        on: on the host, once per device of the process. An exception in it ends the
        step with a `JaxRuntimeError`. None logs a warning.

    Returns:
      A transformation. Its state is a tuple with the fields `calls`, `last` (a
      `CollectiveStats`), `safeguards`, and means and maxima over all calls, for a log
      or a checkpoint; only `hadamard="auto"` and the count of consecutive skips depend
      on it. Its `update` takes `step=` as an extra argument, see `psum`.

    Raises:
      UsageError: the mode, the name or another argument is invalid, or an argument of
        mode "lossy" is given in another mode. `update` raises the other errors of
        `average_gradients`, and one inside of `optax.MultiSteps`.
    """
    # A late import, so that programs without Optax do not need it.
    import optax  # noqa: PLC0415

    votes = hadamard == "auto" or skip_above is not None
    if mode is not None:
        checks.check_mode(mode)
    checks.check_wire_format(wire_format)
    check_arguments(mode, hadamard, skip_above, on_repeated_skips)
    kind = "optax_average_gradients"
    key = checks.checked_key(name, kind)

    # The count in the state is no step: it decreases when a program returns to an
    # earlier state. The session counts the same number of calls on all ranks.
    def update(
        updates: Any, state: Any, params: Any = None, *, step: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        del params
        _check_no_multi_steps(optax.MultiSteps)
        call = checks.checked_call(kind, axis_name, key, mode, wire_format, fast_axis)
        by_votes = jnp.asarray(state.safeguards.hadamard)
        rotate = by_votes if hadamard == "auto" else hadamard
        reduced = reduce_tree(updates, step, call, specs=specs, rotate=rotate)
        means, stats = reduced.tree, reduced.stats()
        safeguards = state.safeguards
        if votes:
            mean_vote = _mean_vote(vote(stats, skip_above), step, call)
            safeguards = next_safeguards(safeguards, mean_vote)
        if skip_above is not None:
            means = _zeros_if(safeguards.skipped, means)
            _run_callback(safeguards, on_repeated_skips or log_skips)
        return means, _next_state(state, stats, safeguards)

    def init(params: Any) -> Any:
        del params
        return _initial_state()

    return optax.GradientTransformationExtraArgs(init=init, update=update)


def _check_no_multi_steps(wrapper: Any) -> None:
    """Raises `UsageError` inside of the `update` of `optax.MultiSteps`.

    That calls the update of its optimizer in each step, and keeps every k-th result.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not wrapper.update.__code__:
        frame = frame.f_back
    steps = 1 if frame is None else frame.f_locals.get("k_steps")
    if isinstance(steps, int) and steps == 1:
        return
    raise UsageError(
        "optax.MultiSteps calls the optimizer that it wraps in each step, and keeps "
        "the result of each k-th step: the calls of optax_average_gradients in it "
        "would send k times the bytes, and late data of the other steps would be lost. "
        "Add up the gradients of the parts of a batch in one step, and call update "
        "once: docs/hybrid.md, Accumulated gradients. Or average each part: "
        "optax.chain(optax_average_gradients(axis), optax.MultiSteps(optimizer, k)"
        ".gradient_transformation())."
    )


def _initial_state() -> AverageGradientsState:
    zeros = {
        name: jnp.zeros((), jnp.float32) for name in AverageGradientsState._fields[3:]
    }
    return AverageGradientsState(
        calls=jnp.zeros((), jnp.int32),
        last=_stats.empty(),
        safeguards=initial_safeguards(),
        **zeros,
    )


def _mean_vote(vote: Any, step: Any, call: Call) -> Any:
    """Returns the mean of a vote on a call, over all devices."""
    axes, key = _with_mesh_axes(call.axes), f"{call.key} vote"
    ballot = checks.checked_call(call.kind, axes, key, "exact")
    vote = allreduce.made_varying(vote, ballot.axes)
    return reduce_tree(vote, step, ballot).tree


def _with_mesh_axes(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Returns these axes and all other manual axes: every device has a vote."""
    mapped = [name for name, (_, manual) in shard_types.mesh_axes().items() if manual]
    return (*axes, *(name for name in mapped if name not in axes))


def _zeros_if(skipped: jax.Array, means: Any) -> Any:
    # Not a product, in which NaN stays NaN.
    return jax.tree.map(
        lambda mean: jnp.where(skipped, jnp.zeros_like(mean), mean), means
    )


def _run_callback(state: SafeguardState, call: Callable[[int], None]) -> None:
    """Calls a function on the host after each 50 consecutive skips."""
    lax.cond(
        is_callback_due(state),
        lambda skips: jax.debug.callback(lambda n: call(int(n)), skips),
        lambda _: None,
        state.skips_in_a_row,
    )


def _next_state(
    state: AverageGradientsState,
    stats: CollectiveStats,
    safeguards: SafeguardState,
) -> AverageGradientsState:
    calls = state.calls + 1

    def mean(name: str) -> jax.Array:
        before = getattr(state, name)
        return before + (getattr(stats, name) - before) / calls

    return AverageGradientsState(
        calls=calls,
        last=stats,
        safeguards=safeguards,
        missing_contributions=mean("missing_contributions"),
        missing_results=mean("missing_results"),
        deferred=mean("deferred"),
        elapsed_s=mean("elapsed_s"),
        largest_missing_results=jnp.maximum(
            state.largest_missing_results, stats.missing_results
        ),
        largest_elapsed_s=jnp.maximum(state.largest_elapsed_s, stats.elapsed_s),
    )
