"""Holds the layers of the C++ core: the table below is the truth.

It is compared with every #include, with ffi/CMakeLists.txt and with BUILD.
"""

import ast
import re
from pathlib import Path

import pytest
from source_tree import ROOT, code, files, includes, relative, text

# Layer -> layers it may include.
LAYERS = {
    "base": set(),
    "codec": {"base"},
    "crypto": {"base"},
    "schedule": {"base"},
    "protocol": {"base", "codec", "crypto", "schedule"},
    "net": {"base"},
    "sim": {"base", "codec", "crypto", "schedule", "protocol"},
    "fuzz": {"base", "codec", "crypto", "schedule", "protocol"},
    "runtime": {"base", "codec", "crypto", "schedule", "protocol", "net"},
    "bind": {
        "base",
        "codec",
        "crypto",
        "schedule",
        "protocol",
        "net",
        "sim",
        "runtime",
    },
}

# The rooms of protocol/ -> rooms they may include. The files of the endpoint, beside
# the rooms, are above all rooms, and the other files there (_SHARED) below.
ROOMS = {
    "wire": set(),
    "path": {"wire"},
    "bucket": set(),
    "deadline": set(),
    "membership": {"wire"},
    "peers": {"wire", "path"},
    "collective": {"wire", "bucket", "deadline"},
    "call": {"wire", "bucket", "deadline", "collective"},
    "session": {
        *("wire", "path", "bucket", "deadline"),
        *("membership", "peers", "collective", "call"),
    },
    "detectors": {"wire", "peers", "collective", "call", "session"},
    "lifecycle": {"wire", "path", "collective", "call", "session", "detectors"},
}
_ENDPOINT = "endpoint"

# The rooms of the package -> rooms they may import. The modules beside the rooms are
# below all of them, except those of _FRONT, which are above.
PACKAGE = {
    "_jax": set(),
    "_session": {"_jax"},
    "_program": {"_jax", "_session"},
    "_calls": {"_jax", "_session", "_program"},
    "coding": {"_session", "_program"},
    "tools": {"_jax", "_session", "_program"},
}
_FRONT = {"__init__", "__main__", "metrics", "outer"}
_SHARED = {"options.h", "stats.h", "submission.h", "transmit.h"}

# Layers without threads, clocks, randomness or input/output: a replay gives the same
# bits.
PURE = ("base", "codec", "crypto", "schedule", "protocol")
_BANNED_HEADERS = {
    "<atomic>",
    "<condition_variable>",
    "<fstream>",
    "<future>",
    "<iostream>",
    "<mutex>",
    "<random>",
    "<shared_mutex>",
    "<stop_token>",
    "<thread>",
    "<unistd.h>",
}
_BANNED_CODE = {
    "a clock": r"\b(steady_clock|system_clock|high_resolution_clock|clock_gettime)\b",
    "the environment": r"\b(getenv|secure_getenv|setenv)\b",
    "unseeded randomness": r"\b(rand|srand|random_device|getrandom|RAND_bytes)\b",
    "output": r"\b(std::cout|std::cerr|std::clog|printf)\b",
    # A constant is the same in every call.
    "a variable that outlives the call": (
        r"\bthread_local\b|^\s+static (?!const|_assert)[^()]*[=;{]"
    ),
}

_CXX = [path for path in files(".h", ".cc") if path.is_relative_to(ROOT / "ffi")]


def _layer(path: Path) -> str:
    return path.relative_to(ROOT / "ffi").parts[0]


def _sources_of_layers() -> dict[str, set[str]]:
    found = {layer: set() for layer in LAYERS}
    for path in [path for path in _CXX if path.suffix == ".cc"]:
        found[_layer(path)].add(path.relative_to(ROOT / "ffi").as_posix())
    return found


def test_the_table_names_the_layers_that_exist():
    folders = {path.name for path in (ROOT / "ffi").iterdir() if path.is_dir()}
    assert folders == set(LAYERS)


def test_the_table_has_no_cycle_and_is_complete():
    order = list(LAYERS)
    for layer, below in LAYERS.items():
        assert all(order.index(other) < order.index(layer) for other in below)
        for other in below:
            assert LAYERS[other] <= below, f"{layer} may reach {other} but not below it"


def _fault_of_an_include(layer: str, target: str) -> str:
    """Returns the rule that an include of a layer breaks; "" if it breaks none."""
    if target.startswith("<"):
        return "write it in quotes" if target.startswith("<ffi/") else ""
    if target.startswith('"xla/'):
        return "" if layer == "bind" else "only bind knows XLA"
    if not target.startswith('"ffi/'):
        return "write the full path, ffi/..."
    if not (ROOT / target.strip('"')).is_file():
        return "no such file"
    allowed = LAYERS[layer] | {layer}
    if target.split("/")[1] not in allowed:
        return f"{layer} may include {sorted(allowed)}"
    return ""


def test_includes_stay_within_the_allowed_layers():
    found = [
        f"{relative(path)}:{number}: #include {target}: {fault}"
        for path in _CXX
        for number, target in includes(path)
        if (fault := _fault_of_an_include(_layer(path), target))
    ]
    assert not found, "\n".join(found)


def _room(path: Path) -> str | None:
    """The room of a file of protocol/; None for files that all rooms may include."""
    inside = path.relative_to(ROOT / "ffi/protocol").parts
    if len(inside) > 1:
        return inside[0]
    return None if path.name in _SHARED else _ENDPOINT


def test_the_table_names_the_rooms_that_exist_and_has_no_cycle():
    folders = [path for path in (ROOT / "ffi/protocol").iterdir() if path.is_dir()]
    assert {path.name for path in folders} == set(ROOMS)
    order = list(ROOMS)
    for room, below in ROOMS.items():
        assert all(order.index(other) < order.index(room) for other in below)


def test_rooms_of_the_protocol_include_only_rooms_below_them():
    for path in [path for path in _CXX if _layer(path) == "protocol"]:
        room = _room(path)
        allowed = {None, room, *(ROOMS if room == _ENDPOINT else ROOMS.get(room, ()))}
        for number, target in includes(path):
            if target.startswith('"ffi/protocol/'):
                other = _room(ROOT / target.strip('"'))
                where = f"{relative(path)}:{number}: #include {target}"
                assert other in allowed, f"{where}: {room} may include {allowed}"


def _package_room(module: str) -> str | None:
    """The room of a module of the package; None for one that lies beside the rooms."""
    first = module.split(".", maxsplit=1)[0]
    return first if first in PACKAGE else None


def _imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, without `jax_optireduce.`.

    An import for annotations alone is none.
    """
    tree, found = ast.parse(text(path)), set()
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    prefix = "jax_optireduce."
    return {name.removeprefix(prefix) for name in found if name.startswith(prefix)}


_PACKAGE_FILES = [
    path for path in files(".py") if path.is_relative_to(ROOT / "jax_optireduce")
]


def test_the_table_names_the_rooms_of_the_package():
    folders = {path.parent for path in _PACKAGE_FILES} - {ROOT / "jax_optireduce"}
    assert {path.name for path in folders} == set(PACKAGE)


def test_rooms_of_the_package_import_only_rooms_below_them():
    for path in _PACKAGE_FILES:
        inside = path.relative_to(ROOT / "jax_optireduce").parts
        if len(inside) == 1 and path.stem in _FRONT:
            continue
        room = inside[0] if len(inside) > 1 else None
        allowed = PACKAGE[room] | {room} if room else set()
        for name in _imported(path):
            other = _package_room(name)
            assert other is None or other in allowed, (
                f"{relative(path)} imports jax_optireduce.{name}: {room or 'it'} may "
                f"import {sorted(allowed) or 'no room'}"
            )
            front = name.split(".")[0] in _FRONT
            assert not front, f"{relative(path)} imports {name}"


def test_pure_layers_have_no_threads_clocks_or_chance():
    for path in [path for path in _CXX if _layer(path) in PURE]:
        for number, target in includes(path):
            banned = target in _BANNED_HEADERS or target.startswith("<sys/")
            assert not banned, f"{relative(path)}:{number}: {target} in a pure layer"
        for number, line in enumerate(code(path).splitlines(), 1):
            for what, pattern in _BANNED_CODE.items():
                assert not re.search(pattern, line), (
                    f"{relative(path)}:{number}: {what} in a pure layer: {line.strip()}"
                )


def test_only_bind_knows_python_and_only_crypto_knows_the_libraries_of_ciphers():
    for path in _CXX:
        for number, target in includes(path):
            where = f"{relative(path)}:{number}: {target}"
            if target.startswith(("<nanobind/", "<Python.h")):
                assert _layer(path) == "bind", where
            if target.startswith(("<openssl/", "<intel-ipsec-mb")):
                assert _layer(path) == "crypto", where


class TestCMake:
    """ffi/CMakeLists.txt has one target per layer, with the links of the table."""

    commands = tuple(
        re.findall(
            r"^\s*(\w+)\(([^()]*)\)",
            re.sub(r"#.*", "", text(ROOT / "ffi/CMakeLists.txt")),
            re.MULTILINE,
        )
    )

    def arguments(self, command: str, target: str) -> list[str]:
        found = [c[1].split() for c in self.commands if c[0] == command]
        return [word for words in found if words[0] == target for word in words[1:]]

    @pytest.mark.parametrize("layer", LAYERS)
    def test_links_exactly_what_it_may_include(self, layer):
        linked = self.arguments("target_link_libraries", f"optireduce_{layer}")
        ours = {w.removeprefix("optireduce_") for w in linked if "optireduce_" in w}
        assert ours - {"flags"} == LAYERS[layer]

    @pytest.mark.parametrize("layer", LAYERS)
    def test_lists_every_source_file_once(self, layer):
        listed = [
            word
            for command, arguments in self.commands
            if command in {"add_library", "add_executable", "nanobind_add_module"}
            for word in arguments.split()
            if word.startswith(f"{layer}/")
        ]
        assert sorted(listed) == sorted(_sources_of_layers()[layer])


class TestBazel:
    """BUILD (its syntax is Python's) globs its files, and draws the same layers."""

    def test_has_the_layers_that_need_no_python(self):
        tables = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(text(ROOT / "BUILD")).body
            if isinstance(node, ast.Assign)
        }
        layers = {layer: set(below) for layer, below in tables["LAYERS"].items()}
        assert layers == {
            layer: below
            for layer, below in LAYERS.items()
            if layer not in {"bind", "fuzz"}
        }

    def test_leaves_out_the_sources_of_bind_that_need_python(self):
        for source in _sources_of_layers()["bind"]:
            left_out = Path(source).name.startswith("module")
            assert needs_python(source) == left_out, source

    def test_leaves_out_the_programs(self):
        for source in set.union(*_sources_of_layers().values()):
            program = bool(
                re.search(r"^int main\(", text(ROOT / "ffi" / source), re.MULTILINE)
            )
            assert program == source.endswith("main.cc"), source


def needs_python(source: str) -> bool:
    """Whether a file of bind/ is part of an extension module."""
    path = ROOT / "ffi" / source
    seen, pending = set(), [path]
    while pending:
        seen.add(current := pending.pop())
        for _, target in includes(current):
            if target.startswith(("<nanobind/", "<Python.h")):
                return True
            below = ROOT / target.strip('"')
            if target.startswith('"ffi/bind/') and below not in seen:
                pending.append(below)
    return False
