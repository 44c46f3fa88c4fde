"""The page of messages quotes messages that exist, and has those of the beginning."""

import ast
import re
from collections.abc import Iterator

from source_tree import ROOT, files, relative, text

_PAGE = text(ROOT / "docs/troubleshooting.md")
_QUOTED = re.findall(r"^\| `([^|]*)` \|", _PAGE, re.MULTILINE)
# Errors that a newcomer meets before the first step: each is on the page.
_OF_THE_BEGINNING = {"RendezvousError", "NotInitializedError"}


def _joined(source: str) -> str:
    """Returns a source file with adjacent literals as one."""
    return re.sub(r'"\s*f?"', "", source)


_SOURCES = {
    relative(path): _joined(text(path))
    for path in files(".py", ".cc", ".h")
    if relative(path).startswith(("jax_optireduce/", "ffi/"))
}


def _parts(message: str) -> list[str]:
    return [part.strip() for part in message.split("…") if part.strip()]


def test_every_quoted_message_is_one_of_the_source():
    for parts in map(_parts, _QUOTED):
        assert len("".join(parts)) >= 8, f"too short to be found again: {parts}"
        found = [p for p, source in _SOURCES.items() if all(x in source for x in parts)]
        assert found, f"no file of the source has a message with {parts}"


def _messages(path: str) -> Iterator[tuple[int, str]]:
    """Yields line and text, with … for values, of the errors of the beginning."""
    for node in ast.walk(ast.parse(text(ROOT / path))):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        name = node.exc.func
        if not (isinstance(name, ast.Name) and name.id in _OF_THE_BEGINNING):
            continue
        literals = [
            part.value
            for part in ast.walk(node.exc)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        if literals:  # else it is the text of another process
            yield node.lineno, "…".join(literals)


def test_every_error_of_the_beginning_is_on_the_page():
    missing = [
        f"{path}:{line}: {message}"
        for path in _SOURCES
        if path.endswith(".py")
        for line, message in _messages(path)
        if not any(all(part in message for part in _parts(q)) for q in _QUOTED)
    ]
    assert not missing, f"docs/troubleshooting.md lacks the messages of {missing}"


def test_a_message_that_does_not_exist_is_found():
    source = _joined('raise E("one " "two"\n      f"three {x} four")')
    assert "one twothree" in source
    assert not any("no such message" in source for source in _SOURCES.values())
