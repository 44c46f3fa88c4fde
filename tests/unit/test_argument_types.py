"""Types of arguments name the values and fields that the program accepts."""

import dataclasses
import typing

import pytest

from jax_optireduce import Options, _native
from jax_optireduce import _argument_types as types


@pytest.mark.parametrize(
    ("literal", "known"),
    [
        (types.Mode, _native.MODES),
        (types.WireFormat, _native.WIRE_FORMATS),
    ],
)
def test_type_has_the_values_of_the_extension_module(literal, known):
    assert sorted(typing.get_args(literal)) == sorted(known)


def test_arguments_of_init_are_the_fields_of_the_options():
    given = typing.get_type_hints(types.OptionArguments)
    fields = {field.name: field.type for field in dataclasses.fields(Options)}
    assert given == fields
