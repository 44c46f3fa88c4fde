"""The exceptions of the package. Each message says: got, expected, do this."""

import difflib
from collections.abc import Iterable


class OptiReduceError(Exception):
    """Base of every exception that this package raises itself.

    JAX raises the errors of a call that is under way (a dead peer, ranks in different
    calls): as `jax.errors.JaxRuntimeError` where the result is first waited for, or as
    `ValueError` at the call itself, if the program is so small that XLA runs it at
    once.
    """


class UsageError(OptiReduceError, ValueError):
    """An argument, an option or a place in the program that cannot work."""


class AxisError(UsageError, NameError):
    """An axis name that is not mapped here. A `NameError`, as from `jax.lax.psum`."""


class NotInitializedError(OptiReduceError, RuntimeError):
    """There is no communicator (yet), or there is one already."""


class RendezvousError(OptiReduceError, RuntimeError):
    """The processes did not find each other, or do not fit together."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the closest of `known`, or an empty string."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
