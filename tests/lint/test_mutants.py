"""The list of planted bugs fits the sources: each place of it is found exactly once."""

import os
import subprocess
import sys

import pytest
from source_tree import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import mutants

_MUTANTS = mutants.read_lists()
_COMPILER = os.environ.get("CXX", "c++")


@pytest.mark.parametrize("mutant", _MUTANTS, ids=lambda m: f"{m.file}: {m.bug}")
def test_every_planted_bug_has_its_place(mutant):
    mutant.place((ROOT / "ffi" / mutant.file).read_text())


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in _MUTANTS}))
def test_the_planted_bugs_of_a_file_do_not_overlap(file):
    source = (ROOT / "ffi" / file).read_text()
    planted = mutants.plant(source, [m for m in _MUTANTS if m.file == file])
    for mutant in _MUTANTS:
        assert (f"Planted({mutant.number})" in planted) == (mutant.file == file)


def test_the_sources_with_all_planted_bugs_compile(tmp_path):
    mutants.make_copy(tmp_path, _MUTANTS)
    planted = {mutant.file for mutant in _MUTANTS}
    # One translation unit: each header is read once.
    sources = [path for path in planted if path.endswith(".cc")]
    headers = [path for path in planted if path.endswith(".h")]
    unit = tmp_path / "unit.cc"
    unit.write_text("".join(f'#include "ffi/{path}"\n' for path in headers + sources))
    command = [_COMPILER, "-std=c++20", "-fsyntax-only", "-I", str(tmp_path)]
    command += ["-include", str(tmp_path / "planted.h"), str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_there_are_at_least_a_hundred_over_the_protocol_and_the_runtime():
    assert len(_MUTANTS) >= 100
    assert {mutant.file.split("/")[0] for mutant in _MUTANTS} == {"protocol", "runtime"}


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


def test_one_bug_may_lie_in_another():
    source = "f(a + b);"
    outer = _mutant(code="a + b", replacement="0")
    inner = _mutant(number=8, code="b", replacement="c")
    planted = mutants.plant(source, [inner, outer])
    at_inner = "(::optireduce::Planted(8) ? (c) : (b))"
    assert planted == f"f((::optireduce::Planted(7) ? (0) : (a + {at_inner})));"


@pytest.mark.parametrize("source", ["no place", "a < b, a < b"])
def test_code_that_is_not_there_once_is_an_error(source):
    with pytest.raises(mutants.ListError, match=r"7 .*expected once .*a < b"):
        mutants.plant(source, [_mutant(code="a < b")])


@pytest.mark.parametrize("source", ["a.f();", "a->f();", "x = f();"])
def test_a_part_of_a_statement_cannot_be_a_branch(source):
    with pytest.raises(mutants.ListError, match="expected whole statements"):
        mutants.plant(source, [_mutant(code="f();")])


def test_what_overlaps_is_an_error():
    bugs = [_mutant(code="a + b"), _mutant(number=8, code="b + c")]
    with pytest.raises(mutants.ListError, match="7 and 8 overlap"):
        mutants.plant("a + b + c", bugs)


def test_a_place_within_another_is_told_apart_by_that():
    source = "f(x); g(x);"
    planted = mutants.plant(source, [_mutant(within="g(x)", code="x")])
    assert planted == "f(x); g((::optireduce::Planted(7) ? (false) : (x)));"


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in _MUTANTS}))
def test_every_planted_bug_has_tests_that_come_first(file):
    paths = mutants.near(file)
    assert paths
    assert [path for path in paths if not (mutants.ROOT / path).exists()] == []
