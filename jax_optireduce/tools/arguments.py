"""Arguments of the verbs: their parser, with short errors, and their types."""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from jax_optireduce._errors import did_you_mean, nearest
from jax_optireduce._session.options import PORT_MAX

PROGRAM = "python -m jax_optireduce"

_REQUIRED = "the following arguments are required:"

# Phrases of argparse, and clearer ones.
_PHRASES = {
    _REQUIRED: "required, but not given:",
    "ignored explicit argument": "takes no value, got",
}

# Chosen: longer ones are mistakes.
_SECONDS_MAX = 3600

_Number = TypeVar("_Number", int, float)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are two lines: the fault, and the command for help.

    It suggests the nearest option for a misspelt one, which argparse does in no
    release; the types below suggest the nearest choice, on every Python.

    Args:
      verb: whose arguments these are; "" for the verb itself.
      description: text above the options.
      epilog: text below the options.
    """

    def __init__(self, verb: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"{PROGRAM} {verb}".rstrip(),
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            # A later release may add an option that makes an abbreviation ambiguous.
            allow_abbrev=False,
        )
        self._verb = verb or "jax_optireduce"
        self._given: Sequence[str] = ()

    def read(self, given: Sequence[str]) -> argparse.Namespace:
        """Returns the arguments; ends the process with 2 if they are invalid."""
        self._given = given
        parsed, unknown = self.parse_known_args(given)
        if unknown and unknown[0].startswith("-"):
            self._refuse_option(unknown[0])
        elif unknown:
            self.error(f"there is no place for the argument {unknown[0]!r}.")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Prints the fault and the command for help, and exits with 2."""
        if re.match(rf"argument [^-]|{_REQUIRED}", message):
            # The fault may be that of a misspelt option, or of the value after it.
            for option in filter(self._nearest_to_unknown, self._given):
                self._refuse_option(option)
        if message.startswith(_REQUIRED):
            given_later = set(re.findall(r"-[\w-]+", message)) & set(self._given)
            message += "; options come before the script" if given_later else ""
        message = message.removeprefix("argument ")
        for theirs, ours in _PHRASES.items():
            message = message.replace(theirs, ours, 1)
        stop = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"{self._verb}: {message}{stop}\nHelp: {self.prog} --help\n")

    def _refuse_option(self, text: str) -> NoReturn:
        near = self._nearest_to_unknown(text)
        hint = f" Did you mean {near}?" if near else ""
        self.error(f"there is no option {text.partition('=')[0]}.{hint}")

    def _nearest_to_unknown(self, text: str) -> str:
        """Returns the long option nearest to an unknown one; "" without one."""
        name = text.partition("=")[0]
        if not name.startswith("--") or name in self._option_string_actions:
            return ""
        known = [text[2:] for text in self._option_string_actions if text[:2] == "--"]
        near = nearest(name[2:], known)
        return f"--{near}" if near else ""


def one_of(*choices: str, metavar: str = "") -> dict[str, Any]:
    """Returns the settings of an argument that is one of `choices`."""

    def parse(text: str) -> str:
        if text in choices:
            return text
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {', '.join(choices)}.{did_you_mean(text, choices)}"
        )

    return {"type": parse, "metavar": metavar or f"{{{','.join(choices)}}}"}


def whole(low: int, metavar: str = "N") -> dict[str, Any]:
    """Returns the settings of an argument that is a whole number from `low` on."""
    return {
        "type": _number(int, f"a whole number of {low} or more", lambda x: x >= low),
        "metavar": metavar,
    }


def port() -> dict[str, Any]:
    """Returns the settings of an argument that is a port."""
    expected = f"a port, from 1 to {PORT_MAX}"
    return {
        "type": _number(int, expected, lambda x: 1 <= x <= PORT_MAX),
        "metavar": "P",
    }


def seconds() -> dict[str, Any]:
    """Returns the settings of an argument that is a time in seconds."""
    expected = f"a time of 0 to {_SECONDS_MAX} seconds"
    fits = _number(float, expected, lambda x: 0 <= x <= _SECONDS_MAX)
    return {"type": fits, "metavar": "S"}


def share() -> dict[str, Any]:
    """Returns the settings of an argument from 0 to 1."""
    expected = "a share, from 0 to 1"
    return {"type": _number(float, expected, lambda x: 0 <= x <= 1), "metavar": "SHARE"}


def factor() -> dict[str, Any]:
    """Returns the settings of an argument that is a finite factor above 1."""
    expected = "a factor above 1"
    return {
        "type": _number(float, expected, lambda x: 1 < x < math.inf),
        "metavar": "X",
    }


def _number(
    kind: type[_Number], expected: str, fits: Callable[[_Number], bool]
) -> Callable[[str], _Number]:
    def parse(text: str) -> _Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not fits(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}.")
        return value

    return parse
