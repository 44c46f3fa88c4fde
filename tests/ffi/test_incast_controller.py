"""The number of peers that may send to a rank at the same time."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native


def test_clean_calls_change_nothing_at_the_most():
    controller = native.IncastController(7)
    for _ in range(20):
        controller.handle_call(5000, 0)
    assert controller.incast() == 7


def test_heavy_loss_halves_and_three_clean_calls_add_one():
    controller = native.IncastController(8)
    controller.handle_call(5000, 300)
    assert controller.incast() == 4
    for _ in range(2):
        controller.handle_call(5000, 0)
    assert controller.incast() == 4
    controller.handle_call(5000, 0)
    assert controller.incast() == 5


def test_the_loss_of_a_shared_link_changes_nothing():
    controller = native.IncastController(8)
    for _ in range(20):
        controller.handle_call(5000, 200)
    assert controller.incast() == 8


def test_small_calls_are_judged_together():
    controller = native.IncastController(8)
    for _ in range(9):
        controller.handle_call(100, 10)
    assert controller.incast() == 8
    controller.handle_call(100, 10)
    assert controller.incast() == 4


@hypothesis.given(
    st.integers(1, 255),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))),
)
def test_incast_stays_between_one_and_the_most(most, calls):
    controller = native.IncastController(most)
    for expected, lost in calls:
        controller.handle_call(expected, min(lost, expected))
        assert 1 <= controller.incast() <= most
