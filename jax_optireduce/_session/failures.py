"""The errors of calls under way, as exceptions of this package.

XLA gives a program the message of an error only, within a text of its own, so the
native side keeps the last failures as values. The message finds the failure.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

from jax_optireduce import _native
from jax_optireduce._errors import (
    Cancelled,
    CollectiveError,
    DeadlineExceeded,
    Disagreement,
    OptiReduceError,
    PathTooSmall,
    PeerLost,
)

_TYPES: Final[dict[str, type[CollectiveError]]] = {
    "peer lost": PeerLost,
    "path too small": PathTooSmall,
    "disagreement": Disagreement,
    "call timeout": DeadlineExceeded,
    "cancelled": Cancelled,
    "other": CollectiveError,
}

_PREFIX = "jax_optireduce: "


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Raises the errors of failed calls in the block as `CollectiveError`.

    JAX raises them where the program waits for a result, which may be later than the
    call: `jax.block_until_ready`, `jax.device_get`, or the next step. That place has to
    be in the block, so put the whole training loop there. Works as a decorator, too.
    Other errors pass unchanged.

    A `CollectiveError` is a `jax.errors.JaxRuntimeError`, as the exception of JAX is in
    most cases, and has that exception as its `__cause__`.

    Raises:
      PeerLost: a rank is dead, silent, has ended, or was removed.
      PathTooSmall: a `PeerLost`; only short datagrams to a rank arrive.
      Disagreement: the ranks make different calls.
      DeadlineExceeded: a rank did not call within `call_timeout_s`.
      Cancelled: the call was cancelled, here or on another rank.
      CollectiveError: the call failed for another reason.
    """
    try:
        yield
    except OptiReduceError:
        raise
    except (RuntimeError, ValueError) as error:
        typed = _typed(str(error))
        if typed is None:
            raise
        raise typed from error


def _typed(text: str) -> CollectiveError | None:
    """Returns the failure of a call with this error; None if there is none."""
    for failure in reversed(_native.failures()):
        message = failure["message"].removeprefix(_PREFIX)
        if message in text:
            return _TYPES[failure["cause"]](
                message,
                ranks=tuple(failure["ranks"]),
                collective=failure["collective"],
                sequence=failure["sequence"],
                waited_s=failure["waited_s"],
            )
    return None
