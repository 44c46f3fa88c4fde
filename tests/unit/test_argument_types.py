"""Types of arguments name the values and fields that the program accepts."""

import typing

import pytest

from jax_optireduce import _argument_types as types
from jax_optireduce import _native


@pytest.mark.parametrize(
    ("literal", "known"),
    [
        (types.Mode, _native.MODES),
        (types.WireFormat, _native.WIRE_FORMATS),
    ],
)
def test_type_has_the_values_of_the_extension_module(literal, known):
    assert sorted(typing.get_args(literal)) == sorted(known)
