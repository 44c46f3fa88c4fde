"""The list of planted bugs fits the sources: each place of it is found exactly once."""

import os
import subprocess
import sys

import pytest
from source_tree import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import mutants

_MUTANTS = mutants.read_lists()
_FILES = sorted({mutant.file for mutant in _MUTANTS})
_COMPILER = os.environ.get("CXX", "c++")
# Chosen: one for each rule whose breach a user would meet; each is quoted code, which
# an edit must keep.
_MUTANTS_MAX = 150


def test_the_planted_bugs_have_their_places():
    for file in _FILES:
        bugs = [mutant for mutant in _MUTANTS if mutant.file == file]
        assert (ROOT / file).exists(), mutants.ListError(bugs[0], "it is not there")
        planted = mutants.plant((ROOT / file).read_text(), bugs)
        if file.endswith(".py"):
            compile(planted, file, "exec")


def test_the_sources_with_all_planted_bugs_compile(tmp_path):
    mutants.make_copy(tmp_path, _MUTANTS)
    # One translation unit: each header is read once.
    sources = [path for path in _FILES if path.endswith(".cc")]
    headers = [path for path in _FILES if path.endswith(".h")]
    unit = tmp_path / "unit.cc"
    unit.write_text("".join(f'#include "{path}"\n' for path in headers + sources))
    command = [_COMPILER, "-std=c++20", "-fsyntax-only", "-I", str(tmp_path)]
    command += ["-include", str(tmp_path / "planted.h"), str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        "an entry of tests/mutants does not compile; correct its `with`, or delete it "
        f"if its rule is gone:\n{done.stderr[-4000:]}"
    )


def test_there_are_bugs_in_every_room_and_not_too_many():
    assert len(_MUTANTS) <= _MUTANTS_MAX, (
        "the list is full: a new entry takes the place of one that matters less"
    )
    protocol = ROOT / "ffi" / "protocol"
    rooms = [path.relative_to(ROOT) for path in protocol.iterdir() if path.is_dir()]
    others = ["ffi/codec", "ffi/crypto", "ffi/net", "ffi/runtime", "jax_optireduce"]
    empty = [
        str(room)
        for room in [*rooms, *others]
        if not any(file.startswith(f"{room}/") for file in _FILES)
    ]
    assert empty == []


def test_no_bug_is_planted_twice():
    seen = {(m.file, m.within, m.code, m.replacement) for m in _MUTANTS}
    assert len(seen) == len(_MUTANTS)
    assert len({m.bug for m in _MUTANTS}) == len(_MUTANTS)


def _mutant(**fields: str) -> mutants.Mutant:
    given = {"number": 7, "bug": "", "file": "", "replacement": "false", **fields}
    return mutants.Mutant(**given)


def test_an_expression_is_chosen_and_a_statement_is_a_branch():
    source = "if (a <\n    b) c();"
    expression = _mutant(code="a < b")
    statement = _mutant(number=8, code="c();", replacement="")
    chosen = "(::optireduce::Planted(7) ? (false) : (a <\n    b))"
    branch = "{ if (::optireduce::Planted(8)) {  } else { c(); } }"
    assert mutants.plant(source, [expression, statement]) == f"if ({chosen}) {branch}"


def test_an_expression_of_python_is_chosen_even_if_it_ends_as_a_statement_of_cpp():
    mutant = _mutant(file="a.py", code="{1: 2}", replacement="{}")
    selected = '__import__("os").environ.get("OPTIREDUCE_PLANTED") == "7"'
    planted = mutants.plant("a = {1: 2}", [mutant])
    assert planted == f"a = (({{}}) if {selected} else ({{1: 2}}))"


@pytest.mark.parametrize("source", ["no place", "a < b, a < b"])
def test_code_that_is_not_there_once_is_an_error_that_says_what_to_do(source):
    message = r"'late'.* expected once: a < b\. .*quote the code.*delete the entry"
    with pytest.raises(mutants.ListError, match=message):
        mutants.plant(source, [_mutant(bug="late", code="a < b")])


@pytest.mark.parametrize("source", ["a.f();", "a->f();", "x = f();"])
def test_a_part_of_a_statement_cannot_be_a_branch(source):
    with pytest.raises(mutants.ListError, match="expected whole statements"):
        mutants.plant(source, [_mutant(code="f();")])


def test_what_overlaps_is_an_error():
    bugs = [_mutant(bug="late", code="a + b"), _mutant(number=8, code="b + c")]
    with pytest.raises(mutants.ListError, match="it overlaps with 'late'"):
        mutants.plant("a + b + c", bugs)


def test_a_place_within_another_is_told_apart_by_that():
    source = "f(x); g(x);"
    planted = mutants.plant(source, [_mutant(within="g(x)", code="x")])
    assert planted == "f(x); g((::optireduce::Planted(7) ? (false) : (x)));"
