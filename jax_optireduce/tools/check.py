"""The findings of `doctor`."""

import dataclasses
import enum


class Level(enum.StrEnum):
    """The severity of a finding."""

    PASS = "PASS"  # noqa: S105 (no password)
    WARN = "WARN"
    FAIL = "FAIL"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One finding.

    Attributes:
      name: the property.
      level: its severity.
      found: the finding, in words, with units.
      remedy: a command or a step; "" if none is needed.
    """

    name: str
    level: Level
    found: str
    remedy: str = ""
