"""The results of benchmarks that resume: a file with a line of JSON for each run."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Cell = TypeVar("Cell")
Row = dict[str, Any]


def read(path: Path, wanted: Sequence[Cell]) -> dict[Cell, dict[str, Any]]:
    """Returns the newest figures of each run in a file.

    Args:
      path: path of the file, which may not exist.
      wanted: runs, of one dataclass whose fields are in each line.
    """
    if not wanted:
        return {}
    kind = type(wanted[0])
    names = [field.name for field in dataclasses.fields(kind)]
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    found = {kind(**{name: row[name] for name in names}): row for row in rows}
    return {cell: found[cell] for cell in wanted if cell in found}


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Adds the figures of a run."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def having(rows: Sequence[Row], **fields: Any) -> list[Row]:
    """Returns the rows with these values."""
    return [row for row in rows if all(row[k] == v for k, v in fields.items())]
