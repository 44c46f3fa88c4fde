"""The membership that the endpoints of a rank share, and the calls that it skips."""

import optireduce_testing as native


def test_it_is_closed_after_each_use():
    membership = native.SharedMembership(3)
    membership.use()
    membership.suspect(1.0, 0, 1)
    assert membership.opened == 2
    assert not membership.open


def test_the_facts_need_no_opening():
    membership = native.SharedMembership(3)
    assert (membership.in_use, membership.asks) == (False, False)
    assert membership.opened == 0


def test_the_first_use_is_a_change_and_the_next_is_none():
    membership = native.SharedMembership(3)
    before = membership.changes
    membership.use()
    assert membership.in_use
    assert membership.changes == before + 1
    membership.use()
    assert membership.changes == before + 1


def test_a_suspicion_of_one_lane_is_that_of_all():
    membership = native.SharedMembership(3)
    membership.suspect(1.0, 1, 2)
    assert membership.asks


def test_the_lanes_share_the_calls_that_the_rank_has_skipped():
    membership = native.SharedMembership(3)
    assert membership.skip(4, 7) == 3
    # The call on the other lane skips no more.
    assert membership.skip(4, 7) == 0
    assert membership.skipped() == 3
