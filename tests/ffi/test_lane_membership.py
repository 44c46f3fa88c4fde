"""The membership of the rank as one lane, this endpoint, follows it."""

import pytest
from session_parts import Parts


@pytest.mark.parametrize("mode", ["exact", "agreed", "lossy"])
def test_only_bounded_calls_outlive_a_member(mode):
    parts = Parts()
    x = parts.collective(mode)
    assert not parts.use_for(x)
    assert not parts.in_use
    assert not parts.survives(x)


def test_the_first_bounded_collective_begins_its_use():
    parts = Parts()
    x, y = parts.collective("bounded"), parts.collective("exact", name="y")
    assert not parts.survives(x)
    assert parts.use_for(x)
    assert parts.in_use
    assert parts.survives(x)
    assert not parts.survives(y)


def test_two_ranks_have_no_majority_without_one_of_them():
    parts = Parts(2)
    x = parts.collective("bounded")
    assert not parts.use_for(x)
    assert not parts.survives(x)


def test_at_first_all_ranks_take_part():
    parts = Parts(4)
    assert parts.view == [0, 1, 2, 3]
    assert not parts.removed


def test_calls_begin_in_the_present_view_until_a_member_is_suspected():
    parts = Parts()
    x = parts.collective("bounded")
    parts.use_for(x)
    assert parts.try_start((x, 4))
    parts.suspect(1.0, 2)
    # The members agree on a call that some of them have begun, and on none after it.
    assert parts.try_start((x, 4))
