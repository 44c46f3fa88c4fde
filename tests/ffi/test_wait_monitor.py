"""Calls that wait without a deadline: the ranks they wait for, and the bound."""

import pytest
from session_parts import Parts


@pytest.fixture
def waiting():
    parts = Parts(call_timeout_s=60.0)
    x = parts.collective("exact")
    parts.submit(1.0, (x, 0))
    return parts, (x, 0)


def test_a_call_waits_for_ranks_whose_contributions_are_missing(waiting):
    parts, call = waiting
    assert parts.waiting_for(call) == ([1, 2], [1, 2])
    parts.hear(1.5, 2, call)
    assert parts.waiting_for(call) == ([1, 2], [1])


def test_no_call_is_due_where_none_waits():
    parts = Parts()
    x = parts.collective("lossy")
    parts.submit(1.0, (x, 0))
    parts.wait(1.0, (x, 0))
    assert parts.pop_due(2.0) == []


def test_a_call_that_waits_is_due_at_once_and_again_within_half_a_second(waiting):
    parts, call = waiting
    parts.wait(1.0, call)
    assert parts.pop_due(1.0) == [call]
    assert parts.pop_due(1.0) == []
    parts.wait_again(1.0, call)
    assert parts.pop_due(1.4) == []
    assert parts.pop_due(1.5) == [call]


def test_a_call_expires_although_all_peers_answer(waiting):
    parts, call = waiting
    parts.hear(60.0, 1)
    assert parts.why_expired(60.9, call) == ""
    why = parts.why_expired(61.0, call)
    assert "call 0 of x: float32[3] has waited 60" in why
    assert "rank 1 (heard 1" in why
    assert "rank 2 (never heard, it has called nothing)" in why


def test_an_expired_call_names_only_ranks_that_have_not_made_it(waiting):
    parts, call = waiting
    parts.hear(2.0, 1, call)
    assert "rank 1 (" not in parts.why_expired(61.0, call)


def test_without_a_bound_no_call_expires():
    parts = Parts()
    x = parts.collective("exact")
    parts.submit(1.0, (x, 0))
    assert parts.why_expired(1e6, (x, 0)) == ""
