"""The releases of JAX that this package was tested with.

The package installs with any newer release, too: most of them change nothing that it
uses. The folder `_jax` has the private names that it does use.
"""

import functools
import re
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import jax

from jax_optireduce._errors import OptiReduceError

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Oldest tested release, as in pyproject.toml; and the first that is not tested.
# Source: runs of the test suite with 0.10.2 and 0.12.0.
_OLDEST: Final = "0.10.2"
_UNTESTED: Final = "0.13"

# The tested versions as a requirement.
TESTED: Final = f"jax>={_OLDEST},<{_UNTESTED}"


def release(version: str) -> tuple[int, ...]:
    """Returns the numbers of a release, "0.10.2", for comparisons."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def is_tested(version: str) -> bool:
    """Whether a release of JAX, "0.10.2", is in the tested range."""
    return release(_OLDEST) <= release(version) < release(_UNTESTED)


def warning(version: str) -> str | None:
    """Returns the warning about an untested release; None for a tested one."""
    if is_tested(version):
        return None
    return (
        f"JAX {version} is outside of the range that this jax_optireduce was tested "
        f"with; if a call fails where none should: pip install '{TESTED}', or a newer "
        "jax_optireduce."
    )


def moved(error: Exception) -> str:
    """Returns the message for a name that this JAX lacks."""
    return (
        f"jax_optireduce uses a name that JAX {jax.__version__} lacks ({error}). "
        f"Tested is {TESTED.removeprefix('jax')}: pip install '{TESTED}', or a newer "
        "jax_optireduce."
    )


def explained(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Explains an error about a name that an untested JAX lacks."""

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            if is_tested(jax.__version__):
                raise
            raise OptiReduceError(moved(error)) from error

    return wrapper
