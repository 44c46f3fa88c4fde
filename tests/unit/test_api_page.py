"""The page of the API has every public name, with the summary of its docstring."""

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import jax_optireduce
from jax_optireduce import coding
from jax_optireduce.__main__ import VERBS

PAGE = Path(__file__).parents[2] / "docs/api.md"


# A constant has no docstring.
_CONSTANTS = {"REPLICAS": "The axis of all replicas of the session, see `Options`."}


def _summary(name: str) -> str:
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    docstring = inspect.getdoc(getattr(jax_optireduce, name)) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def test_the_page_has_every_public_name_once_with_its_summary():
    # Options have a third column.
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    wanted = [(name, _summary(name)) for name in jax_optireduce.__all__]
    lines = "\n".join(f"| `{name}` | {text} |" for name, text in wanted)
    assert sorted(rows) == sorted(wanted), f"the rows of docs/api.md are\n{lines}"


def test_the_page_has_every_name_of_coding_once_with_its_summary():
    rows = re.findall(
        r"^\| `coding\.(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE
    )
    wanted = []
    for name in coding.__all__:
        docstring = inspect.getdoc(getattr(coding, name)) or ""
        wanted.append((name, " ".join(docstring.split("\n\n")[0].split())))
    assert sorted(rows) == sorted(wanted)


def test_the_page_has_every_command_with_its_summary():
    row = r"^\| `python -m jax_optireduce (\w+)` \| (.*) \|$"
    rows = dict(re.findall(row, PAGE.read_text(), re.MULTILINE))
    assert rows == {verb: summary for verb, (_, summary) in VERBS.items()}
    for verb, (module, _) in VERBS.items():
        assert verb == module, "the site finds the docstring by the name of the verb"


def test_the_package_shows_its_public_names_and_modules_alone():
    code = "import jax_optireduce; print(*dir(jax_optireduce))"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    names = {name for name in shown if not name.startswith("_")}
    assert names == set(jax_optireduce.__all__)


def test_every_public_object_documents_its_arguments():
    for name in jax_optireduce.__all__:
        found = getattr(jax_optireduce, name)
        docstring = inspect.getdoc(found) or ""
        if inspect.isfunction(found) and inspect.signature(found).parameters:
            assert "Args:" in docstring, name
        if name in {"Options", "CollectiveStats"}:
            fields = {field.name for field in dataclasses.fields(found) if field.init}
            documented = set(re.findall(r"^\s*(\w+):", docstring, re.MULTILINE))
            assert fields <= documented, (name, fields - documented)
