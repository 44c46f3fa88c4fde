"""Calls that outlive their members: which they are, and calls that are held."""

import math

import pytest
from session_parts import Parts


@pytest.mark.parametrize(
    ("mode", "survives"),
    [("exact", False), ("agreed", False), ("bounded", True), ("lossy", False)],
)
def test_only_bounded_calls_continue_without_removed_members(mode, survives):
    parts = Parts()
    x = parts.collective(mode)
    assert not parts.survives(x)
    assert parts.use_for(x) == survives
    assert parts.survives(x) == survives


def test_two_ranks_cannot_remove_each_other():
    parts = Parts(2)
    x = parts.collective("bounded")
    assert not parts.use_for(x)
    assert not parts.survives(x)


def test_a_held_call_begins_where_no_agreement_is_awaited():
    parts = Parts()
    x = parts.collective("bounded")
    parts.use_for(x)
    parts.hold(1.0, (x, 0))
    assert parts.holds
    parts.start(1.0)
    assert not parts.holds
    assert parts.poll_event() is None


def test_a_call_is_held_while_a_member_that_left_may_be_missed():
    parts = Parts(call_timeout_s=5.0)
    x = parts.collective("bounded")
    parts.use_for(x)
    parts.mark_left(2)
    parts.hold(1.0, (x, 0))
    parts.start(1.0)
    assert parts.holds
    assert parts.succession_timeout == 6.0
    parts.expire_held(5.9)
    assert parts.poll_event() is None
    parts.expire_held(6.0)
    assert "for the ranks to agree" in parts.poll_event()
    assert parts.succession_timeout > 1e9 or math.isinf(parts.succession_timeout)


def test_held_calls_of_one_collective_stay_in_order():
    parts = Parts()
    x, y = parts.collective("bounded"), parts.collective("bounded", name="y")
    parts.use_for(x)
    parts.open(1.0, (y, 0))
    parts.hear(1.0, 2, (y, 0))
    parts.mark_left(2)
    for call in ((x, 0), (x, 1), (y, 0)):
        parts.hold(1.0, call)
    parts.start(1.0)
    assert parts.holds
    # The call of y has begun: the member that left had made it.
    assert not parts.is_over((x, 0))
