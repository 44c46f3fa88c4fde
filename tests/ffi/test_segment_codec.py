"""The values of a call in its wire format."""

import numpy as np
import pytest

import optireduce_testing as native

VALUES = np.linspace(-np.pi, np.pi, 97, dtype=np.float32).tolist()


def round_trip(wire_format: str, *, self: int = 0, drain: bool = False, call: str = ""):
    """Some values as receivers read them: each is a segment of a call of its own.

    Args:
      wire_format: of the collective.
      self: the sender.
      drain: whether the calls are drains.
      call: format of the calls, if not that of the collective.
    """
    collective = native.Collective(
        "x", mode="bounded", members=[0, 1], elements=2, wire_format=wire_format
    )
    return native.round_trip(collective, self, VALUES, drain, call or wire_format)


def test_float32_is_exact():
    assert round_trip("float32") == VALUES


@pytest.mark.parametrize("wire_format", ["bfloat16", "int8", "float4"])
def test_other_formats_round(wire_format):
    rounded = round_trip(wire_format)
    assert rounded != VALUES
    # Near 3 the numbers of "float4" are 1 apart.
    atol = 1.0 if wire_format == "float4" else 0.05
    np.testing.assert_allclose(rounded, VALUES, atol=atol)


@pytest.mark.parametrize("wire_format", ["bfloat16", "int8", "float4"])
def test_a_drain_is_not_rounded(wire_format):
    assert round_trip(wire_format, drain=True) == VALUES


@pytest.mark.parametrize("call", ["float32", "int8"])
def test_the_payload_shows_the_format_that_a_sender_has_chosen(call):
    assert round_trip("auto", call=call) == round_trip(call)
    assert round_trip("auto", call=call, drain=True) == VALUES


def test_the_same_values_round_alike_each_time():
    assert round_trip("bfloat16") == round_trip("bfloat16")


def test_ranks_round_independently_of_each_other():
    assert round_trip("bfloat16", self=0) != round_trip("bfloat16", self=1)
