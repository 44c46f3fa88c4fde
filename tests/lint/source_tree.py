"""The project's own files, and C++ text without comments, for the lint tests."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Folders of the project's own files. Build folders and virtual environments lie beside
# them.
_FOLDERS = ("ffi", "jax_optireduce", "tests", "examples", "docs", "benchmarks", "tools")
_FOLDERS += (".ci", "third_party")
# .git is a file in a worktree.
_GENERATED = {".git", "__pycache__", ".hypothesis", ".pytest_cache", ".ruff_cache"}
# The quote in 1'000 separates digits.
_COMMENT_OR_TEXT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"""
    r""""|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)


@functools.cache
def files(*suffixes: str) -> tuple[Path, ...]:
    """Returns the project's files with one of the suffixes, or all of them."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in _FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return tuple(
        sorted(
            path
            for path in found
            if not _GENERATED & set(path.parts)
            and (path.suffix in suffixes or not suffixes)
        )
    )


@functools.cache
def text(path: Path) -> str:
    """Returns the contents of a file; "" for one that is not text."""
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""


@functools.cache
def code(path: Path) -> str:
    """Returns a C++ file with comments and literals blanked out, line by line."""
    return _COMMENT_OR_TEXT.sub(_blank, text(path))


def comments_and_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields offset and text of every comment and literal of a C++ file."""
    for match in _COMMENT_OR_TEXT.finditer(text(path)):
        yield match.start(), match.group()


def _blank(match: re.Match[str]) -> str:
    """Blanks a comment or a literal, and keeps the line breaks and the quotes."""
    found = match.group()
    kept = found[0] if found[0] in "\"'" else " "
    return kept + re.sub(r"[^\n]", " ", found[1:-1]) + kept


def relative(path: Path) -> str:
    """Returns the path as messages show it."""
    return path.relative_to(ROOT).as_posix()


def includes(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line number and target, with its brackets or quotes, of every #include."""
    for number, line in enumerate(text(path).splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"][^>"]+[>"])', line)
        if match:
            yield number, match.group(1)
