"""The calls that a member has given up, as intervals."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native


def test_calls_that_follow_each_other_are_one_interval():
    calls = native.GivenUpCalls()
    calls.add(3, 3)
    assert calls.add(4, 4) == (3, 4, False)
    assert calls.add(2, 2) == (2, 4, False)


def test_a_call_between_two_intervals_joins_them():
    calls = native.GivenUpCalls()
    calls.add(1, 1)
    calls.add(3, 3)
    assert calls.find(2) is None
    assert calls.add(2, 2) == (1, 3, False)


def test_errors_of_another_kind_are_another_interval():
    calls = native.GivenUpCalls()
    calls.add(1, 1)
    assert calls.add(2, 2, disagreed=True) == (2, 2, True)
    assert calls.find(1) == (1, 1, False)


def test_the_reason_is_that_of_the_newest():
    calls = native.GivenUpCalls()
    calls.add(5, 5, why="interrupted")
    calls.add(2, 2, why="out of memory")
    assert calls.why == "out of memory"


@hypothesis.given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4))))
def test_every_call_that_was_added_is_found_and_no_other(added):
    calls = native.GivenUpCalls()
    model = set()
    for first, more in added:
        last = first + more
        calls.add(first, last)
        model |= set(range(first, last + 1))
    for call in range(40):
        found = calls.find(call)
        assert (found is not None) == (call in model)
        if found:
            first, last, _ = found
            # The interval is as long as it can be.
            assert set(range(first, last + 1)) <= model
            assert not {first - 1, last + 1} & model
