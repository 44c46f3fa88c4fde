"""Files that a user names: each fault is an error of one line, with the file's name."""

import json
from pathlib import Path
from typing import Any

from jax_optireduce._errors import UsageError


def read_text(path: Path) -> str:
    """Reads a file.

    Raises:
      UsageError: it cannot be read, or is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text.") from error


def parse_json(text: str) -> Any:
    """Parses JSON.

    Raises:
      ValueError: it is not JSON.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_text(path: Path, text: str) -> None:
    """Writes a file.

    Raises:
      UsageError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
