"""The same as a link of an Optax chain."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_optireduce import _checks, _gradients, _stats
from jax_optireduce._checks import AxisName
from jax_optireduce._stats import CollectiveStats

if TYPE_CHECKING:
    import optax


class AllReduceState(NamedTuple):
    """What `all_reduce_gradients` knows of its calls; a pytree of scalars.

    As in `CollectiveStats`, ranks see different values (except `calls`), although JAX
    types them as equal. A checkpoint holds those of the process that wrote it.

    Attributes:
      calls: int32; calls since `init`, those before a checkpoint included.
      last: report of the last call.
      missing_contributions: mean over the calls, in [0, 1], like the other shares.
      missing_results: mean over the calls.
      carried: mean over the calls.
      elapsed_s: mean over the calls, in seconds.
      largest_missing_results: of one call.
      largest_elapsed_s: of one call, in seconds.
    """

    calls: jax.Array
    last: CollectiveStats
    missing_contributions: jax.Array
    missing_results: jax.Array
    carried: jax.Array
    elapsed_s: jax.Array
    largest_missing_results: jax.Array
    largest_elapsed_s: jax.Array


def all_reduce_gradients(
    axis_name: AxisName,
    *,
    mode: str = "bounded",
    name: str | None = None,
) -> "optax.GradientTransformationExtraArgs":
    """Averages the gradients over a mapped axis; put it first in the chain.

    Example::

        optimizer = optax.chain(all_reduce_gradients("data"), optax.sgd(0.1))
        state = optimizer.init(params)  # state[0] is the report of this link

    Differs from `jax.lax.pmean` in: what `allreduce_gradients` differs in.

    Args:
      axis_name: see `psum`.
      mode: see `psum`.
      name: see `psum`; None takes the place of this call.

    Returns:
      A transformation. Its state is a tuple with the fields `calls`, `last` (a
      `CollectiveStats`) and means and maxima over all calls, for a log or a
      checkpoint; nothing depends on it. Its `update` takes `step=` as an extra
      argument, see `psum`.

    Raises:
      UsageError: the mode or the name does not fit. The other errors of
        `allreduce_gradients` come from `update`.
    """
    # Here and not above, so that programs without Optax do not pay for its import.
    import optax  # noqa: PLC0415

    _checks.check_mode(mode)
    key = _checks.checked_key(name, "all_reduce_gradients")

    # The state's own count is not used as the step. It goes back with the parameters,
    # when a program returns to an earlier state or begins with a new one, and a step
    # must not; the calls, counted by the session, are as many on all ranks either way.
    def update(
        updates: Any,
        state: AllReduceState,
        params: Any = None,
        *,
        step: Any = None,
        **_: Any,
    ) -> tuple[Any, AllReduceState]:
        del params
        means, stats = _gradients.allreduce_gradients_with_stats(
            updates, axis_name, mode=mode, step=step, name=key
        )
        return means, _followed_by(state, stats)

    return optax.GradientTransformationExtraArgs(init=_initial, update=update)


def _initial(params: Any) -> AllReduceState:
    del params
    zeros = {name: jnp.zeros((), jnp.float32) for name in AllReduceState._fields[2:]}
    return AllReduceState(calls=jnp.zeros((), jnp.int32), last=_stats.empty(), **zeros)


def _followed_by(state: AllReduceState, stats: CollectiveStats) -> AllReduceState:
    calls = state.calls + 1

    def mean(name: str) -> jax.Array:
        before = getattr(state, name)
        return before + (getattr(stats, name) - before) / calls

    return AllReduceState(
        calls=calls,
        last=stats,
        missing_contributions=mean("missing_contributions"),
        missing_results=mean("missing_results"),
        carried=mean("carried"),
        elapsed_s=mean("elapsed_s"),
        largest_missing_results=jnp.maximum(
            state.largest_missing_results, stats.missing_results
        ),
        largest_elapsed_s=jnp.maximum(state.largest_elapsed_s, stats.elapsed_s),
    )
