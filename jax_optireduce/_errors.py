"""The exceptions. Each message has the given and expected values, and a remedy."""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import jax


class OptiReduceError(Exception):
    """Base of every exception that this package raises itself.

    JAX raises the errors of a call under way (a dead peer, ranks in different calls):
    as `jax.errors.JaxRuntimeError` at the first wait for its result, or as `ValueError`
    at the call itself, if XLA runs a small program immediately. Inside
    `typed_errors()` these are a `CollectiveError`.
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


if TYPE_CHECKING:  # JAX gives no type of it.
    _JaxRuntimeError = RuntimeError
else:
    _JaxRuntimeError = jax.errors.JaxRuntimeError


class CollectiveError(OptiReduceError, _JaxRuntimeError):
    """A collective failed while the program ran; its results are undefined.

    Raised inside `typed_errors()`, from the exception of JAX. A subclass tells the
    cause; an error without one, such as exhausted memory, is of this class itself.

    Attributes:
      ranks: processes that the error is about, ascending; empty if it is about this
        one alone. If another process has found the error, the first of them.
      collective: name of the call.
      sequence: number of the call among those of its name, from 0.
      waited_s: seconds from the call to its error.
    """

    def __init__(
        self,
        message: str,
        *,
        ranks: tuple[int, ...] = (),
        collective: str = "",
        sequence: int = 0,
        waited_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.collective = collective
        self.sequence = sequence
        self.waited_s = waited_s


class PeerLost(CollectiveError):
    """A rank is dead, silent for `peer_timeout_s`, has ended, or was removed.

    `ranks` are these. If this rank is among them, the others continue without it.
    """


class PathTooSmall(PeerLost):
    """Long datagrams to a rank do not arrive, short ones do: an MTU on the way."""


class Disagreement(CollectiveError):
    """The ranks make different calls.

    `ranks` has one of each side; empty if devices of this process disagree.
    """


class DeadlineExceeded(CollectiveError):
    """A program did not make the call within `call_timeout_s`.

    `ranks` are waited for; empty if it is for devices of this process. The deadline of
    a `bounded` or `lossy` call is no error.
    """


class Cancelled(CollectiveError):
    """The call was cancelled: Ctrl-C, `cancel()`, or the end of the communicator.

    `ranks` are empty if that was in this process.
    """


def nearest(given: str, known: Iterable[str]) -> str:
    """Returns the one of `known` that is most like `given`; "" if none is like it."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower(), list(by_lower), n=1, cutoff=0.5)
    return by_lower[close[0]] if close else ""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the nearest of `known`, or an empty string."""
    near = nearest(given, known)
    return f" Did you mean {near!r}?" if near else ""
