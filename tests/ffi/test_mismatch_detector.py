"""Calls that can never be completed: ranks that are in different calls."""

import pytest
from session_parts import WAITING, Parts


@pytest.fixture
def crossed():
    """Rank 0 waits in x; all ranks know y."""
    parts = Parts(mismatch_timeout_s=10.0)
    x, y = parts.collective("exact"), parts.collective("exact", name="y")
    parts.submit(1.0, (x, 0))
    return parts, (x, 0), (y, 0)


def hear_all(parts, now):
    for rank in (1, 2):
        parts.hear(now, rank)


def test_a_call_that_waits_is_reported_to_all_members(crossed):
    parts, call, _ = crossed
    parts.report(1.4, call)
    assert parts.control(1) == parts.control(2) == []
    parts.report(1.5, call)
    assert parts.control(1) == parts.control(2) == [(WAITING, call)]


def test_a_peer_that_waits_elsewhere_for_long_is_an_error(crossed):
    parts, ours, theirs = crossed
    for now in range(2, 13):
        parts.handle_report(float(now), 1, theirs)
    hear_all(parts, 12.0)
    why = parts.find_crossed(12.0, ours)
    assert "rank 0 is in call 0 of x: float32[3]" in why
    assert "rank 1 is in call 0 of y: float32[3]" in why


def test_a_peer_that_has_waited_elsewhere_for_a_moment_is_none(crossed):
    parts, ours, theirs = crossed
    parts.handle_report(11.0, 1, theirs)
    hear_all(parts, 12.0)
    assert parts.find_crossed(12.0, ours) == ""


def test_an_old_report_is_no_evidence(crossed):
    parts, ours, theirs = crossed
    parts.handle_report(2.0, 1, theirs)
    hear_all(parts, 15.0)
    assert parts.find_crossed(15.0, ours) == ""


def test_a_peer_that_waits_where_this_rank_has_been_called_as_well_is_none(crossed):
    parts, ours, theirs = crossed
    parts.submit(3.0, theirs)
    for now in range(2, 13):
        parts.handle_report(float(now), 1, theirs)
    hear_all(parts, 12.0)
    assert parts.find_crossed(12.0, ours) == ""


def test_ranks_do_not_disagree_while_one_is_silent(crossed):
    parts, ours, theirs = crossed
    for now in range(2, 33):
        parts.handle_report(float(now), 1, theirs)
    parts.hear(32.0, 1)
    assert parts.find_crossed(32.0, ours) == ""


def test_a_member_that_makes_the_call_with_other_facts_is_an_error():
    parts = Parts()
    x = parts.collective("exact")
    other = parts.collective("exact", fingerprint=2)
    parts.submit(1.0, (x, 4))
    assert parts.find_mismatched((x, 4)) == ""
    parts.announce(1.0, 2, (other, 3))
    assert parts.find_mismatched((x, 4)) == ""
    parts.announce(1.0, 2, (other, 4))
    assert "rank 2 is in call 4 of x" in parts.find_mismatched((x, 4))
