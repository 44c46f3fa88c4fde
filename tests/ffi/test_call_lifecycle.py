"""Calls from their start to their end; the only place where calls end."""

import pytest
from session_parts import ANNOUNCEMENT, Parts

# Deadline of both stages together, the default of collectives of tests.
DEADLINE_S = 0.1


def events(parts):
    """The errors of the calls that have ended, empty for none."""
    ended = []
    while (error := parts.poll_event()) is not None:
        ended.append(error)
    return ended


def test_the_first_call_of_a_collective_is_announced_and_later_ones_are_not():
    parts = Parts()
    x = parts.collective("bounded")
    parts.begin(1.0, (x, 0))
    assert parts.control(1) == [(ANNOUNCEMENT, (x, 0))]
    parts.begin(1.0, (x, 1))
    assert parts.control(1) == [(ANNOUNCEMENT, (x, 0))]


def test_a_call_of_a_rank_alone_ends_at_once():
    parts = Parts(1)
    x = parts.collective("exact")
    parts.begin(1.0, (x, 0))
    assert events(parts) == [""]
    assert (parts.completed, parts.failed) == (1, 0)


def test_a_bounded_call_ends_by_its_deadline():
    parts = Parts()
    x = parts.collective("bounded")
    parts.begin(1.0, (x, 0))
    assert parts.lifecycle_timeout == pytest.approx(1.0 + DEADLINE_S / 2)
    parts.expire_due(1.0 + DEADLINE_S / 2)
    assert events(parts) == []
    parts.expire_due(1.0 + DEADLINE_S)
    assert events(parts) == [""]


def test_an_exact_call_has_no_deadline():
    parts = Parts()
    x = parts.collective("exact")
    parts.begin(1.0, (x, 0))
    assert parts.lifecycle_timeout > 1e6
    parts.expire_due(1e6)
    assert events(parts) == []


def test_all_calls_of_the_program_fail_with_the_reason():
    parts = Parts()
    x, y = parts.collective("exact"), parts.collective("bounded", name="y")
    parts.begin(1.0, (x, 0))
    parts.begin(1.0, (y, 0))
    parts.open(1.0, (x, 1))
    assert parts.fail_all(1.0, "interrupted")
    assert events(parts) == ["interrupted", "interrupted"]
    assert (parts.completed, parts.failed) == (0, 2)
    assert not parts.fail_all(1.0, "again"), "nothing is left"


def test_those_that_need_their_members_may_be_left_alone():
    parts = Parts()
    x, y = parts.collective("exact"), parts.collective("bounded", name="y")
    parts.begin(1.0, (x, 0))
    parts.begin(1.0, (y, 0))
    assert parts.fail_all(1.0, "too few are left", only_outliving=True)
    assert events(parts) == ["too few are left"]
    assert parts.contains((x, 0))


def test_a_lossy_call_that_the_program_jumps_over_is_over():
    parts = Parts()
    x = parts.collective("lossy")
    parts.open(1.0, (x, 0))
    parts.begin(1.0, (x, 1))
    assert parts.calls(x) == [(x, 1)]
    assert events(parts) == []
