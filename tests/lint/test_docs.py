"""Statements of the documents are true: snippets compile, names and links exist."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import ROOT, code, files, relative, text

_PAGES = files(".md")
_DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADERS = "\n".join(text(path) for path in files(".h"))
_HTML_LINK = re.compile(r'(?:src|href|srcset)="([^"]+)"')


def _snippets() -> Iterator[tuple[str, str]]:
    """Yields place and text of every Python block of a page."""
    for page in _PAGES:
        for match in _FENCE.finditer(text(page)):
            if match.group(1) == "python":
                line = text(page).count("\n", 0, match.start()) + 1
                yield f"{relative(page)}:{line}", match.group(2)


def _public_names() -> set[str]:
    """The names that __init__.py defines or imports, without running it."""
    names = {"tools"}
    for node in ast.parse(text(ROOT / "jax_optireduce/__init__.py")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return {name for name in names if not name.startswith("_") or name == "__version__"}


def _used_names(snippet: str) -> set[str]:
    """The names of the package that a snippet uses."""
    tree = ast.parse(snippet)
    aliases = set()
    used = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {
                alias.asname or alias.name
                for alias in node.names
                if alias.name == "jax_optireduce"
            }
        elif isinstance(node, ast.ImportFrom) and node.module == "jax_optireduce":
            used += [alias.name for alias in node.names]
    used += [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in aliases | {"jax_optireduce"}
    ]
    return set(used)


def test_python_snippets_compile_and_use_public_names():
    known = _public_names()
    for where, snippet in _snippets():
        unknown = _used_names(snippet) - known
        assert not unknown, f"{where}: jax_optireduce has no {sorted(unknown)}"


def test_links_to_files_lead_somewhere():
    for page in _PAGES:
        outside_code = _FENCE.sub("", text(page))
        targets = [a or b for a, b in _LINK.findall(outside_code)]
        targets += _HTML_LINK.findall(outside_code)
        for target in targets:
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            path = target.split("#")[0]
            assert (page.parent / path).exists(), f"{relative(page)}: no file {target}"


def _anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", text(page)), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in plain}


def test_links_to_headings_lead_somewhere():
    for page in _PAGES:
        for target, _ in _LINK.findall(_FENCE.sub("", text(page))):
            path, _, anchor = target.partition("#")
            if not anchor or re.match(r"[a-z]+:", target):
                continue
            other = (page.parent / path).resolve() if path else page
            assert anchor in _anchors(other), f"{relative(page)}: no heading {target}"


def _linked(page: Path) -> set[Path]:
    targets = (target for target, _ in _LINK.findall(text(page)))
    return {(page.parent / target.split("#")[0]).resolve() for target in targets}


def test_every_page_is_linked_from_the_index_of_its_folder():
    for folder in {page.parent for page in _PAGES if page.is_relative_to(_DOCS)}:
        linked = _linked(folder / "index.md")
        missing = set(folder.glob("*.md")) - linked - {folder / "index.md"}
        assert not missing, f"{relative(folder)}/index.md does not link {missing}"
        assert folder == _DOCS or folder / "index.md" in _linked(_DOCS / "index.md")


def test_the_index_sorts_the_pages_by_purpose():
    # The navigation of the site is that of the index (docs/conf.py).
    headings = re.findall(r"^## (.*)$", text(_DOCS / "index.md"), re.MULTILINE)
    expected = ["Learn", "How to", "Reference", "Explanation"]
    assert headings == [*expected, "Decisions"]
    first = [page for page, _ in _LINK.findall(text(_DOCS / "index.md")) if page]
    assert first[:3] == ["../README.md", "tutorial.md", "is-the-network-my-problem.md"]


def test_a_decision_has_its_number_and_three_parts():
    pages = list((_DOCS / "decisions").glob("0*.md"))
    assert len({page.name[:4] for page in pages}) == len(pages)
    for page in pages:
        assert text(page).startswith(f"# {int(page.name[:4])}. ")
        headings = re.findall(r"^## (.*)$", text(page), re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences"]


# A path of this repository, in prose or in a command.
_PATH = re.compile(
    r"(?<![\w./:~-])((?:ffi|tests|jax_optireduce|examples|docs|tools|benchmarks"
    r"|third_party|\.ci|\.github)/[\w./-]*\w)"
)
# The name of a file without its folder.
_FILE = re.compile(r"`(\w+\.(?:cc|h|md|sh|toml|yaml|yml))`")
_NAMES = {path.name for path in files()} | {".clang-tidy"}


def test_files_of_a_page_exist():
    for page in _PAGES:
        missing = [
            path
            for path in _PATH.findall(text(page))
            if not ((page.parent / path).exists() or (ROOT / path).exists())
        ]
        missing += set(_FILE.findall(text(page))) - _NAMES
        assert not missing, f"{relative(page)}: no file {sorted(missing)}"


_TYPE = re.compile(r"\b(?:class|struct|enum class) (\w+)[^;{}()]*\{")
# Classes of XLA that a page names.
_FOREIGN = {"ThunkExecutor"}


@functools.cache
def _members() -> dict[str, set[str]]:
    """The words in the definition of each class, struct and enumeration."""
    found: dict[str, set[str]] = {}
    for path in files(".h", ".cc"):
        for match in _TYPE.finditer(code(path)):
            end, depth = match.end(), 1
            while depth:
                depth += {"{": 1, "}": -1}.get(code(path)[end], 0)
                end += 1
            words = re.findall(r"\w+", code(path)[match.end() : end])
            found.setdefault(match.group(1), set()).update(words)
    return found


def test_members_of_classes_that_a_page_names_exist():
    for page in _PAGES:
        for owner, member in re.findall(r"`(\w+)::(\w+)`", text(page)):
            known = _members().get(owner, set())
            missing = owner not in _FOREIGN and member not in known
            assert not missing, f"{relative(page)}: {owner} has no {member}"


def test_checks_of_the_simulator_have_their_class_in_the_guarantees():
    section = text(_DOCS / "guarantees.md").split("\n### Checks\n", 1)[1]
    names = re.findall(r"`(Check\w*|Note\w+)`", section.split("\n## ", 1)[0])
    functions = re.findall(r"^std::string (\w+)\(", _HEADERS, re.MULTILINE)
    assert set(names) <= set(functions), "write `Class::Member`"


def _files_on_the_map() -> dict[str, set[str]]:
    """The files named in the tables of ARCHITECTURE.md, by folder, without suffix."""
    named: dict[str, set[str]] = {}
    base, folder, column = "", "", -1
    for line in text(ROOT / "ARCHITECTURE.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            column = -1
        elif heads := [cell for cell in cells if re.match(r"file( of |$)", cell)]:
            column = cells.index(heads[0])
            base = folder = "".join(re.findall(r"`(.*?)/?`", line))
        elif column >= 0 and not line.startswith("| --"):
            if column > 0 and cells[0]:
                room = re.match(r"`(.*)`", cells[0])
                folder = f"{base}/{room.group(1)}".strip("/") if room else base
            found = re.findall(r"`(\w+)`", cells[column])
            named.setdefault(folder, set()).update(found)
    return named


_MAP = _files_on_the_map()


def test_the_map_names_files_that_exist():
    for folder, named in _MAP.items():
        there = {path.stem for path in (ROOT / folder).iterdir()}
        assert named <= there, f"not in {folder}: {named - there}"


def test_the_map_names_every_file_of_the_core_and_the_package():
    missing = [
        relative(path)
        for path in files(".h", ".cc", ".py", ".pyi")
        if relative(path).startswith(("ffi/", "jax_optireduce/"))
        and path.stem != "__init__"
        and path.stem not in _MAP.get(relative(path.parent), set())
    ]
    assert not missing, f"ARCHITECTURE.md has no row for {missing}"


def test_the_readme_is_short_and_begins_with_a_program():
    page = text(ROOT / "README.md")
    assert page.count("\n") < 200
    assert page[: page.index("```python")].count("\n") < 30


def _table_under(heading: str) -> dict[str, str]:
    """The rows of the tables under a heading of the page: name -> meaning."""
    page = text(ROOT / "docs/observability.md")
    section = page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))


def _options(of: str = "Options") -> list[str]:
    """The options, in their order; or the settings for tests, with "Internal"."""
    [options] = [
        node
        for node in ast.parse(text(ROOT / "jax_optireduce/_session/options.py")).body
        if isinstance(node, ast.ClassDef) and node.name == of
    ]
    return [
        f.target.id
        for f in options.body
        if isinstance(f, ast.AnnAssign)
        and isinstance(f.target, ast.Name)
        and "ClassVar" not in ast.unparse(f.annotation)
    ]


def _section_of_options() -> str:
    page = text(ROOT / "docs/api.md")
    return page.split("\n## Options\n", 1)[1].split("\n## ")[0]


def test_every_option_is_in_the_table_of_options():
    rows = r"^\| `(\w+)` \|[^|]*\|[^|]*\|$"
    assert re.findall(rows, _section_of_options(), re.MULTILINE) == _options()


# The name of a variable, or that of all of them: "JAX_OPTIREDUCE_" and "..._*".
_VARIABLE = re.compile(r"\bJAX_OPTIREDUCE_([A-Z_]*)")


def test_every_environment_variable_of_a_text_is_an_option():
    of_users = {name.upper() for name in _options()}
    of_tests = {name.upper() for name in _options("Internal")}
    for path in files():
        if "tests" in path.relative_to(ROOT).parts:
            continue
        # Pages tell users of options; a tool may be for tests.
        known = of_users if path.suffix == ".md" else of_users | of_tests
        unknown = set(_VARIABLE.findall(text(path))) - known - {""}
        assert not unknown, f"{relative(path)}: no option {sorted(unknown)}"


def test_the_table_of_options_names_the_variable_of_every_option():
    # The rule for all of them, above the table that names each option once.
    section = " ".join(_section_of_options().split())
    assert "`JAX_OPTIREDUCE_` and the name in capitals" in section
    prefix = re.search(
        r'^ENVIRONMENT_PREFIX = "(\w+)"$',
        text(ROOT / "jax_optireduce/_session/options.py"),
        re.MULTILINE,
    )
    assert prefix is not None
    assert prefix.group(1) == "JAX_OPTIREDUCE_"


def test_every_counter_is_explained_in_its_own_words():
    header = text(ROOT / "ffi/protocol/stats.h")
    port = text(ROOT / "ffi/net/datagram_port.h")
    counters = dict(re.findall(r'X\((\w+), *"([^"]*)"\)', header))
    errors = dict(re.findall(r'X\((\w+), *"([^"]*)"\)', port))
    counters |= {f"send_{name}": meaning for name, meaning in errors.items()}
    communicator = text(ROOT / "ffi/runtime/communicator.cc")
    others = set(re.findall(r'named\.emplace_back\("(\w+)",', communicator))
    documented = _table_under("Counters")
    assert set(documented) == set(counters) | others
    assert {name: documented[name] for name in counters} == counters


def test_every_field_of_the_flight_record_is_explained():
    header = text(ROOT / "ffi/bind/event_dict.h")
    body = header.split("ToObject(const CallRecord&", 1)[1].split("\n}", 1)[0]
    fields = re.findall(r'{"(\w+)",', body)
    assert list(_table_under("The flight record")) == fields
    method = text(ROOT / "jax_optireduce/_session/communicator.py")
    docstring = method.split("def flight_record", 1)[1].split("return", 1)[0]
    assert set(re.findall(r'"(\w+)"', docstring)) >= set(fields)


def test_every_field_of_the_statistics_is_explained():
    source = text(ROOT / "jax_optireduce/_stats.py")
    fields = re.findall(r"^    (\w+): jax\.Array$", source, re.MULTILINE)
    assert list(_table_under("Statistics of a call")) == fields


def test_the_page_of_the_simulator_names_every_field_of_a_scenario_once():
    declared = re.findall(
        r"^  X\((\w+),", text(ROOT / "ffi/sim/scenario.h"), re.MULTILINE
    )
    page = text(ROOT / "ffi/sim/README.md").split("## Fields of a scenario")[1]
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(declared)
