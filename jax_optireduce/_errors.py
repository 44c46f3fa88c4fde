"""The exceptions. Each message has the given and expected values, and a remedy."""

import difflib
from collections.abc import Iterable


class OptiReduceError(Exception):
    """Base of every exception that this package raises itself.

    JAX raises the errors of a call under way (a dead peer, ranks in different calls):
    as `jax.errors.JaxRuntimeError` at the first wait for its result, or as `ValueError`
    at the call itself, if XLA runs a small program immediately.
    """


class UsageError(OptiReduceError, ValueError):
    """An invalid argument, option or place in the program."""


class AxisError(UsageError, NameError):
    """An axis name that is not mapped here. A `NameError`, as from `jax.lax.psum`."""


class NotInitializedError(OptiReduceError, RuntimeError):
    """No communicator exists, or one exists already."""


class RendezvousError(OptiReduceError, RuntimeError):
    """The processes did not reach each other, or are not compatible."""


class ReplicasDifferError(OptiReduceError, AssertionError):
    """Replicas that should be equal have different bits."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the closest of `known`, or an empty string."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower(), list(by_lower), n=1, cutoff=0.5)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""
