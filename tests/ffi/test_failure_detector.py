"""The states of peers, and the effect of the end of a peer on calls."""

import pytest
from session_parts import PROBE, Parts

TIMEOUT_S = 8.0


def in_call(mode, **options):
    parts = Parts(peer_timeout_s=TIMEOUT_S, **options)
    x = parts.collective(mode)
    parts.submit(1.0, (x, 0))
    return parts, (x, 0)


def test_a_silent_peer_is_alive_again_when_it_is_heard():
    parts, _ = in_call("exact")
    assert parts.mark_silent(2)
    assert not parts.mark_silent(2)
    assert parts.state(2) == "silent"
    parts.hear(2.0, 2)
    assert parts.state(2) == "alive"


def test_a_silent_peer_is_a_suspect_where_the_members_can_agree():
    parts, call = in_call("bounded")
    parts.use_for(call[0])
    parts.mark_silent(2)
    assert parts.state(2) == "suspected"


def test_a_peer_that_left_stays_away():
    parts, _ = in_call("exact")
    parts.mark_left(1)
    parts.hear(2.0, 1)
    assert parts.state(1) == "left"


def test_a_quiet_member_is_asked_before_it_counts_as_silent():
    parts, call = in_call("exact")
    parts.hear(1.0, 1)
    assert parts.find_silent(2.9, call) == []
    assert parts.control(2) == []
    assert parts.find_silent(3.0, call) == []
    assert [kind for kind, _ in parts.control(2)] == [PROBE]
    parts.hear(8.0, 1)
    assert parts.find_silent(9.0, call) == [2]


@pytest.mark.parametrize("mode", ["exact", "agreed"])
def test_a_call_that_waits_for_a_peer_ends_with_it(mode):
    parts, call = in_call(mode)
    parts.mark_silent(2)
    assert parts.release_peer(2.0, 2) == ([call], False)


def test_a_lossy_call_outlives_its_peers():
    parts, call = in_call("lossy")
    parts.mark_silent(2)
    assert parts.release_peer(2.0, 2) == ([], False)
    assert parts.find_unreachable((call[0], 1)) is None


@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded"])
def test_a_new_call_needs_every_member(mode):
    parts, call = in_call(mode)
    parts.mark_silent(2)
    assert parts.find_unreachable((call[0], 1)) == 2


@pytest.mark.parametrize(("mode", "needed"), [("bounded", None), ("exact", 2)])
def test_a_member_that_left_is_not_needed_in_a_call_that_it_has_made(mode, needed):
    parts, (x, _) = in_call(mode)
    parts.open(1.0, (x, 1))
    parts.hear(1.5, 2, (x, 1))
    parts.mark_left(2)
    assert parts.find_unreachable((x, 1)) == needed
    assert parts.find_unreachable((x, 2)) == 2
