"""A receiver's memory of datagram numbers with gaps."""

import pytest

import optireduce_testing as native

# Of flow.h: this many of the newest numbers are remembered.
REMEMBERED = 4096


def make_flow():
    return native.Flow(1 << 20, 1472)


@pytest.mark.parametrize(
    "jump", [64, 4032, 4095, 4096, 4097, 4160, 8191, 8192, 100_000]
)
def test_no_number_that_a_jump_has_passed_over_counts_as_received(jump):
    flow = make_flow()
    first = 200
    for number in range(first):
        flow.record(0.0, number)
    newest = first - 1 + jump
    flow.record(0.0, newest)
    for number in range(newest):
        too_old = newest - number >= REMEMBERED
        assert flow.seen(number) == (too_old or number < first), number
