"""Limits of the sources: lengths, words, local paths, unused names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("path", _CXX + _PYTHON, ids=relative)
def test_lines_are_short(path):
    long = [
        number
        for number, line in enumerate(text(path).splitlines(), 1)
        if len(line) > _COLUMNS[path.suffix] and "http" not in line
    ]
    assert not long, f"{relative(path)}: over {_COLUMNS[path.suffix]} columns: {long}"


@pytest.mark.parametrize("path", _PYTHON, ids=relative)
def test_python_functions_are_short(path):
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.FunctionDef):
            lines = node.end_lineno - node.lineno + 1
            documented = ast.get_docstring(node, clean=False) or ""
            lines -= documented.count("\n")
            assert lines <= _FUNCTION_LINES_MAX, (
                f"{relative(path)}:{node.lineno}: {node.name} has {lines} lines "
                f"without its docstring, {_FUNCTION_LINES_MAX} are the limit"
            )


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


@pytest.mark.parametrize("path", _CXX, ids=relative)
def test_cxx_functions_are_short(path):
    for first, lines, name in _cxx_functions(code(path)):
        assert lines <= _FUNCTION_LINES_MAX, (
            f"{relative(path)}:{first}: {name} has {lines} lines, "
            f"{_FUNCTION_LINES_MAX} are the limit"
        )


def test_the_limit_of_functions_sees_them():
    source = (
        "namespace a {\nclass B {\n public:\n  int C() const { return 1; }\n};\n"
        "B::B(int x)\n    : x_(x) {\n  if (x) {\n    D();\n  }\n}\n}  // namespace a\n"
    )
    found = [(first, lines) for first, lines, _ in _cxx_functions(source)]
    assert found[-1] == (6, 6)
    assert len(found) == 2


@pytest.mark.parametrize("path", _CXX + _PYTHON, ids=relative)
def test_one_word_per_thing(path):
    if path == Path(__file__):
        return
    for number, name in _identifiers(path):
        if name in _FOREIGN_IDENTIFIERS:
            continue
        for word in _words(name) & set(_BANNED_WORDS):
            pytest.fail(
                f"{relative(path)}:{number}: {name}: do not say {word}, "
                f"say {_BANNED_WORDS[word]}"
            )


@pytest.mark.parametrize("path", files(), ids=relative)
def test_nothing_is_left_to_do(path):
    if path.parent == _HERE:
        return
    marks = re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))", text(path))
    assert not marks, f"{relative(path)}: {marks}: do it, or write TODO(#issue)"


@pytest.mark.parametrize("path", files(), ids=relative)
def test_no_path_of_one_machine(path):
    if path.parent == _HERE:
        return
    found = re.findall(
        r"(?<![\w.$}~*-])/(?:work|root|home|tmp|Users)/[\w.-]*", text(path)
    )
    assert not found, f"{relative(path)}: {found}"


def test_every_header_is_included_somewhere():
    included = {target.strip('"') for path in _CXX for _, target in includes(path)}
    unused = [relative(p) for p in files(".h") if relative(p) not in included]
    assert not unused


@pytest.mark.parametrize("path", files(".h"), ids=relative)
def test_headers_have_the_guard_of_their_path(path):
    guard = re.sub(r"\W", "_", relative(path)).upper() + "_"
    assert f"#ifndef {guard}\n#define {guard}\n" in text(path), f"expected {guard}"
