"""The programs of the endpoint's fuzz target reach their intended effects.

A program is bytes: see ffi/fuzz/endpoint_program.h. The programs in
tests/fuzz/endpoint/ are named after their effects; the fuzzers start from them.
"""

from pathlib import Path

import pytest

import optireduce_testing as native

PROGRAMS = sorted((Path(__file__).parent.parent / "fuzz" / "endpoint").iterdir())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_program_reaches_what_it_is_named_after(program):
    reached = native.run_endpoint_program(program.read_bytes())
    assert reached[program.name], reached


def test_a_removed_rank_leaves_though_a_silent_one_is_heard_again():
    # Two ranks are removed, one after the other. The target checks that all end.
    program = "fe00948d0000007900d049008500fc253000c67b750000000018000000003165799d93"
    native.run_endpoint_program(bytes.fromhex(program))


def test_there_is_a_program_for_each_thing_to_reach():
    assert {program.name for program in PROGRAMS} == set(
        native.run_endpoint_program(b"")
    )
