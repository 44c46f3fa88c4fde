"""Limits of the sources: lengths, words, local paths, unused names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import code, files, includes, relative, text

_FUNCTION_LINES_MAX = 60
_COLUMNS = {".h": 100, ".cc": 100, ".py": 88, ".pyi": 88}

# Word -> what to write instead. One word per thing, in code, documents and logs.
_BANNED_WORDS = {
    "blob": "bucket",
    "chunk": "shard (of a bucket) or segment (of a shard)",
    "fragment": "segment",
    "nprocs": "world_size",
    "packet": "datagram",
    "poller": "lane",
    "worker": "lane, or completion pool",
}

_FUNCTION_HEAD = re.compile(
    r"^(?!\s*(?:class|struct|enum|union|namespace)\b).*\)[^;=]*$", re.DOTALL
)

# Words of interfaces of other projects.
_FOREIGN_IDENTIFIERS = {"max_workers"}

_CXX = files(".h", ".cc")
_PYTHON = files(".py", ".pyi")
_HERE = Path(__file__).parent


def _words(identifier: str) -> set[str]:
    """Splits snake_case and CamelCase; a plural counts as its singular."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower()
    return {word.rstrip("s") if len(word) > 3 else word for word in spaced.split("_")}


def _identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and name of each name in a file: in Python, only of definitions."""
    if path.suffix in (".h", ".cc"):
        for number, line in enumerate(code(path).splitlines(), 1):
            if not line.lstrip().startswith("#"):
                yield from (
                    (number, name) for name in re.findall(r"[A-Za-z_]\w+", line)
                )
        return
    for node in ast.walk(ast.parse(text(path))):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def test_lines_are_short():
    long = [
        f"{relative(path)}:{number}: over {_COLUMNS[path.suffix]} columns"
        for path in _CXX + _PYTHON
        for number, line in enumerate(text(path).splitlines(), 1)
        if len(line) > _COLUMNS[path.suffix] and "http" not in line
    ]
    assert not long, "\n".join(long)


def _python_functions(source: str) -> Iterator[tuple[int, int, str]]:
    """Yields first line, number of lines without the docstring, and name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node, clean=False) or ""
            lines = node.end_lineno - node.lineno + 1 - documented.count("\n")
            yield node.lineno, lines, node.name


def _cxx_functions(source: str) -> Iterator[tuple[int, int, str]]:
    """Yields first line, number of lines and name of every function of blanked code.

    A function's body is a pair of braces after ")" and qualifiers. Namespaces and
    classes are searched; statements and lambdas count as part of their function.
    """
    directive = r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"
    source = re.sub(
        directive,
        lambda m: re.sub(r"[^\n]", " ", m.group()),
        source,
        flags=re.MULTILINE,
    )
    depth, depth_of_body, since, begin, name = 0, None, 0, 0, ""
    for position, character in enumerate(source):
        if character == "{":
            depth += 1
            head = source[since:position]
            if depth_of_body is None and _FUNCTION_HEAD.search(head):
                depth_of_body = depth
                begin = since + len(head) - len(head.lstrip())
                name = " ".join(head.split("(")[0].split()[-2:])
        elif character == "}":
            if depth == depth_of_body:
                depth_of_body = None
                first = source.count("\n", 0, begin) + 1
                yield first, source.count("\n", begin, position) + 1, name
            depth -= 1
        if character in "{};" and depth_of_body is None:
            since = position + 1


def test_functions_are_short():
    found = [(path, _cxx_functions(code(path))) for path in _CXX]
    found += [(path, _python_functions(text(path))) for path in _PYTHON]
    long = [
        f"{relative(path)}:{first}: {name} has {lines} lines (a docstring is not "
        f"counted), {_FUNCTION_LINES_MAX} are the limit"
        for path, functions in found
        for first, lines, name in functions
        if lines > _FUNCTION_LINES_MAX
    ]
    assert not long, "\n".join(long)


def test_the_limit_of_functions_sees_them():
    source = (
        "namespace a {\nclass B {\n public:\n  int C() const { return 1; }\n};\n"
        "B::B(int x)\n    : x_(x) {\n  if (x) {\n    D();\n  }\n}\n}  // namespace a\n"
    )
    found = [(first, lines) for first, lines, _ in _cxx_functions(source)]
    assert found[-1] == (6, 6)
    assert len(found) == 2


def test_one_word_per_thing():
    banned = [
        f"{relative(path)}:{number}: {name}: do not say {word}, "
        f"say {_BANNED_WORDS[word]}"
        for path in _CXX + _PYTHON
        if path != Path(__file__)
        for number, name in _identifiers(path)
        if name not in _FOREIGN_IDENTIFIERS
        for word in _words(name) & set(_BANNED_WORDS)
    ]
    assert not banned, "\n".join(banned)


def _found_outside_of_the_lints(pattern: str) -> list[str]:
    """Returns path and text of every match in a file of the project."""
    return [
        f"{relative(path)}: {found}"
        for path in files()
        if path.parent != _HERE
        for found in re.findall(pattern, text(path))
    ]


def test_nothing_is_left_to_do():
    marks = _found_outside_of_the_lints(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
    assert not marks, f"{marks}: do it, or write TODO(#issue)"


def test_no_path_of_one_machine():
    found = _found_outside_of_the_lints(
        r"(?<![\w.$}~*-])/(?:work|root|home|tmp|Users)/[\w.-]*"
    )
    assert not found, "\n".join(found)


def test_every_header_is_included_somewhere():
    included = {target.strip('"') for path in _CXX for _, target in includes(path)}
    unused = [relative(p) for p in files(".h") if relative(p) not in included]
    assert not unused


def test_headers_have_the_guard_of_their_path():
    guards = {
        path: re.sub(r"\W", "_", relative(path)).upper() + "_" for path in files(".h")
    }
    missing = [
        f"{relative(path)}: expected {guard}"
        for path, guard in guards.items()
        if f"#ifndef {guard}\n#define {guard}\n" not in text(path)
    ]
    assert not missing, "\n".join(missing)
