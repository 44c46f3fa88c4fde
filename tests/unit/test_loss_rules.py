"""Reactions to loss: rotation, skipped updates, the user's callback; the arguments."""

import dataclasses
import logging
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax

import jax_optireduce
from jax_optireduce import _stats
from jax_optireduce._calls import safeguards

# Thousandths meet the thresholds exactly, in single and in double precision.
LOSSES = st.integers(0, 1000).map(lambda n: n / 1000)
QUIET = st.sampled_from([0.0, 0.009, 0.01, 0.02, 0.021])
# Runs, because single draws would never give a hundred quiet calls in a row.
RUNS = st.lists(st.tuples(LOSSES | QUIET, st.integers(1, 110)), max_size=4)


def _report(contributions: Any, results: Any = 0.0) -> _stats.CollectiveStats:
    return dataclasses.replace(
        _stats.empty(),
        missing_contributions=jnp.asarray(contributions, jnp.float32),
        missing_results=jnp.asarray(results, jnp.float32),
    )


@jax.jit
def _decide(losses: jax.Array, limit: jax.Array) -> tuple[jax.Array, ...]:
    """Returns (hadamard, skipped, user called) after each call of one rank."""

    def call(state, loss):
        vote = safeguards.vote(_report(loss), limit)
        state = safeguards.next_state(state, vote)
        called = safeguards.is_callback_due(state)
        return state, (state.hadamard, state.skipped, called)

    return lax.scan(call, safeguards.initial(), losses)[1]


@hypothesis.given(RUNS, st.integers(0, 999).map(lambda n: n / 1000))
def test_decisions_follow_from_the_calls_before(runs, limit):
    history = [loss for loss, calls in runs for _ in range(calls)]
    # One shape, to compile once.
    padded = np.zeros(440, np.float32)
    padded[: len(history)] = history
    hadamard, skipped, called = map(np.asarray, _decide(padded, np.float32(limit)))
    on = False
    for i, loss in enumerate(history):
        last = history[max(0, i - 99) : i + 1]
        # On above 2 %, off after 100 calls below 1 %.
        if loss > 0.02:
            on = True
        elif len(last) == 100 and max(last) < 0.01:
            on = False
        assert hadamard[i] == on
        skips = [each > limit for each in history[: i + 1]]
        assert skipped[i] == skips[-1]
        in_a_row = [*skips[::-1], False].index(False)
        assert called[i] == (in_a_row > 0 and in_a_row % 50 == 0)


def test_the_worse_of_both_stages_counts():
    for report in (_report(0.2, 0.1), _report(0.1, 0.2)):
        np.testing.assert_allclose(safeguards.vote(report, 0.15), [0.2, 1])
        np.testing.assert_allclose(safeguards.vote(report, 0.25), [0.2, 0])
        np.testing.assert_allclose(safeguards.vote(report, None), [0.2, 0])


@pytest.mark.parametrize("share", [float("nan"), float("inf")])
def test_a_share_that_is_no_number_counts_as_all(share):
    np.testing.assert_array_equal(safeguards.vote(_report(0.0, share), 0.9), [1, 1])
    np.testing.assert_array_equal(safeguards.vote(_report(share), None), [1, 0])


def test_one_rank_of_many_is_enough_to_skip():
    state = safeguards.next_state(safeguards.initial(), jnp.asarray([0.0, 1 / 4096]))
    assert state.skipped
    assert (int(state.skips), int(state.skips_in_a_row)) == (1, 1)


def test_the_warning_says_what_to_do(caplog):
    with caplog.at_level(logging.WARNING, "jax_optireduce"):
        safeguards.log_skips(50)
    assert "the last 50 updates were skipped" in caplog.text
    assert "raise skip_above" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"mode": "bounded", "hadamard": "auto"}, "hadamard needs mode='lossy'"),
        ({"mode": "exact", "skip_above": 0.1}, "skip_above needs mode='lossy'"),
        ({"hadamard": "yes"}, "True, False, 'auto' or None, got 'yes'"),
        ({"skip_above": 10}, "from 0 to below 1, got 10"),
        ({"skip_above": float("nan")}, "from 0 to below 1, got nan"),
        ({"skip_above": True}, "from 0 to below 1, got True"),
        ({"on_repeated_skips": print}, "Write skip_above=0.1"),
        ({"skip_above": 0.1, "on_repeated_skips": 3}, "must be a function"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(arguments, expected):
    arguments = {"mode": "lossy", **arguments}
    with pytest.raises(jax_optireduce.UsageError, match=expected):
        jax_optireduce.optax_average_gradients("dp", **arguments)
