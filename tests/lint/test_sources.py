"""Every constant of the protocol names the origin of its value."""

import re

from source_tree import ROOT, files, relative, text

_CONSTANT = re.compile(r"\bconstexpr\b[^=({]*?\b(k[A-Z]\w*)\s*(?:=|\{)")
_ORIGIN = re.compile(r"//.*\b(Source|Chosen):")


def _undocumented(lines: list[str]) -> list[str]:
    """Returns "line: name" of constants without an origin above them or beside them.

    One comment serves the constants that follow it without an empty line between. A
    constant that is computed from others, without a number of its own, needs none.
    """
    found = []
    for number, line in enumerate(lines, 1):
        match = _CONSTANT.search(line)
        if not match:
            continue
        value = line[match.end() :] + (lines[number] if ";" not in line else "")
        value = value.split(";")[0].split("//")[0]
        if not re.search(r"(?<![\w])\d", value):
            continue
        block = [line]
        for above in reversed(lines[: number - 1]):
            if not above.strip():
                break
            block.append(above)
        if not any(_ORIGIN.search(near) for near in block):
            found.append(f"{number}: {match.group(1)}")
    return found


def test_constants_name_their_source():
    found = [
        f"{relative(path)}:{constant}"
        for path in files(".h", ".cc")
        if path.is_relative_to(ROOT / "ffi/protocol")
        for constant in _undocumented(text(path).splitlines())
    ]
    assert not found, (
        "write '// Source: ...' (a paper, an RFC) or '// Chosen: ...' (an experiment) "
        f"at {found}"
    )


def test_the_rule_sees_a_constant_without_origin():
    lines = ["constexpr int kA = 3;", "", "// Chosen: by hand.", "constexpr int kB{4};"]
    assert _undocumented(lines) == ["1: kA"]
    assert _undocumented(["constexpr int kC = kA * kB;"]) == []
