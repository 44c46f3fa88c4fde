"""The number of peers that may send to a rank at the same time."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native


def test_clean_calls_change_nothing_at_the_most():
    controller = native.IncastController(7)
    for _ in range(20):
        controller.handle_call(5000, 0, 0)
    assert controller.incast() == 7


def test_a_timeout_with_loss_halves_and_three_clean_calls_add_one():
    controller = native.IncastController(8)
    controller.handle_call(5000, 6, 1)
    assert controller.incast() == 4
    for _ in range(2):
        controller.handle_call(5000, 0, 0)
    assert controller.incast() == 4
    controller.handle_call(5000, 0, 0)
    assert controller.incast() == 5


def test_a_late_program_is_no_congestion():
    controller = native.IncastController(8)
    controller.handle_call(5000, 0, 1)
    assert controller.incast() == 8


@pytest.mark.parametrize(("lost", "incast"), [(200, 8), (300, 4)])
def test_without_a_timeout_only_heavy_loss_halves(lost, incast):
    controller = native.IncastController(8)
    controller.handle_call(5000, lost, 0)
    assert controller.incast() == incast


def test_small_calls_are_judged_together():
    controller = native.IncastController(8)
    for _ in range(9):
        controller.handle_call(100, 10, 0)
    assert controller.incast() == 8
    controller.handle_call(100, 10, 0)
    assert controller.incast() == 4


@hypothesis.given(
    st.integers(1, 255),
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 2))
    ),
)
def test_incast_stays_between_one_and_the_most(most, calls):
    controller = native.IncastController(most)
    for expected, lost, timeouts in calls:
        controller.handle_call(expected, min(lost, expected), timeouts)
        assert 1 <= controller.incast() <= most
