"""File descriptors with one owner, and numeric addresses."""

import pytest

import optireduce_testing as native


@pytest.mark.parametrize("moved", [False, True])
def test_a_descriptor_is_closed_with_its_last_owner(moved):
    assert native.open_before_and_after(moved) == (True, False)


@pytest.mark.parametrize(
    ("address", "family"),
    [("10.0.0.1", 4), ("127.0.0.1", 4), ("::1", 6), ("fd00::12", 6)],
)
def test_numeric_addresses_of_both_families_are_read(address, family):
    assert native.parse_address(address, 4711) == (family, 4711)


@pytest.mark.parametrize(
    "address", ["", "10.1", "localhost", "10.0.0.256", "fd00::xyz"]
)
def test_any_other_text_is_an_error_that_repeats_it(address):
    with pytest.raises(Exception, match="numeric IPv4 or IPv6 address") as error:
        native.parse_address(address, 4711)
    assert f'"{address}"' in str(error.value)
