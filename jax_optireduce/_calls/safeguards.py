"""Reactions to loss in mode "lossy": rotation, skipped updates, a callback.

The rules are functions of a small pytree. All ranks must make the same decision, so it
depends on the average of their measurements: a vote.
"""

import logging
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_optireduce._errors import UsageError
from jax_optireduce._stats import CollectiveStats

_log = logging.getLogger("jax_optireduce")

# Shares of the data, and numbers of calls.
# Chosen: the paper gives no figures. On above 2 %, off after 100 calls below 1 %.
_HADAMARD_ON_LOSS = 0.02
_HADAMARD_OFF_LOSS = 0.01
_HADAMARD_OFF_CALLS = 100

# Consecutive skips between two calls of the user's function.
# Chosen: the paper gives no figure.
SKIPS_PER_CALLBACK = 50


class SafeguardState(NamedTuple):
    """Decisions of the safeguards: a pytree of scalars, the same on every rank.

    Attributes:
      hadamard: bool; whether hadamard="auto" rotates the next call.
      quiet_calls: int32; consecutive calls with little loss.
      skipped: bool; whether the update of the last call was skipped.
      skips_in_a_row: int32; consecutive skips, up to the last call.
      skips: int32; skips since `init`, including those before a checkpoint.
    """

    hadamard: jax.Array
    quiet_calls: jax.Array
    skipped: jax.Array
    skips_in_a_row: jax.Array
    skips: jax.Array


def initial() -> SafeguardState:
    """Returns the state before the first call."""
    return SafeguardState(
        hadamard=jnp.zeros((), jnp.bool_),
        quiet_calls=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.bool_),
        skips_in_a_row=jnp.zeros((), jnp.int32),
        skips=jnp.zeros((), jnp.int32),
    )


def vote(stats: CollectiveStats, skip_above: float | None) -> jax.Array:
    """Returns the vote of a rank on a call: [loss, 1 to skip or 0], float32 [2].

    A NaN counts as a call without data.
    """
    loss = jnp.maximum(stats.missing_contributions, stats.missing_results)
    loss = jnp.where(jnp.isfinite(loss), loss, 1)
    skip = 0 if skip_above is None else loss > skip_above
    return jnp.stack([loss, jnp.asarray(skip, jnp.float32)])


def next_state(state: SafeguardState, mean_vote: jax.Array) -> SafeguardState:
    """Returns the state after a call, from the mean of the votes over the ranks."""
    loss, skip = mean_vote
    skipped = skip > 0
    quiet_calls = jnp.where(loss < _HADAMARD_OFF_LOSS, state.quiet_calls + 1, 0)
    hadamard = state.hadamard | (loss > _HADAMARD_ON_LOSS)
    return SafeguardState(
        hadamard=hadamard & (quiet_calls < _HADAMARD_OFF_CALLS),
        quiet_calls=quiet_calls,
        skipped=skipped,
        skips_in_a_row=jnp.where(skipped, state.skips_in_a_row + 1, 0),
        skips=state.skips + skipped,
    )


def is_callback_due(state: SafeguardState) -> jax.Array:
    """Returns whether the last call was the 50th, 100th, ... consecutive skip."""
    return state.skipped & (state.skips_in_a_row % SKIPS_PER_CALLBACK == 0)


def log_skips(skips: int) -> None:
    """Logs repeated skips of updates."""
    _log.warning(
        "the last %d updates were skipped on every rank: each lacked more data at some "
        "rank than skip_above allows. Training makes no progress. Repair the network, "
        "give the calls more time (deadline_s), raise skip_above, or use mode='exact'.",
        skips,
    )


def check_arguments(
    mode: str | None, hadamard: Any, skip_above: Any, on_repeated_skips: Any
) -> None:
    """Checks the arguments of `optax_average_gradients` that belong to mode "lossy".

    Raises:
      UsageError: an argument is invalid, or given in another mode.
    """
    given = {
        "hadamard": hadamard,
        "skip_above": skip_above,
        "on_repeated_skips": on_repeated_skips,
    }
    names = [name for name, value in given.items() if value is not None]
    if names and mode != "lossy":
        raise UsageError(
            f"{' and '.join(names)} needs mode='lossy', got mode={mode!r}, which loses "
            "no data; leave them out or change the mode."
        )
    if hadamard not in (None, "auto") and not isinstance(hadamard, bool):
        raise UsageError(
            f"hadamard must be True, False, 'auto' or None, got {hadamard!r}."
        )
    _check_skips(skip_above, on_repeated_skips)


def _check_skips(skip_above: Any, on_repeated_skips: Any) -> None:
    """Raises `UsageError` unless the arguments of skipped updates are valid."""
    if skip_above is None:
        if on_repeated_skips is not None:
            raise UsageError(
                "on_repeated_skips needs skip_above: else nothing is skipped. Write "
                "skip_above=0.1 to skip updates of which more than 10 % is missing."
            )
        return
    number = isinstance(skip_above, (int, float)) and not isinstance(skip_above, bool)
    if not number or not math.isfinite(skip_above) or not 0 <= skip_above < 1:
        raise UsageError(
            "skip_above must be a share of the data, from 0 to below 1, got "
            f"{skip_above!r}."
        )
    if on_repeated_skips is not None and not callable(on_repeated_skips):
        raise UsageError(
            "on_repeated_skips must be a function of the number of skips in a row, got "
            f"{on_repeated_skips!r}."
        )
