"""The membership of several lanes: facts without a lock, and lanes that are woken."""

import optireduce_testing as native


def test_a_suspicion_on_one_lane_wakes_all_lanes_once():
    membership = native.GuardedMembership(3)
    assert not membership.asks
    membership.use()
    woken = membership.wakes
    assert woken == 3, "the first use is a change"
    membership.suspect(5.0, 1)
    assert membership.asks
    woken = membership.wakes
    membership.use()
    assert membership.wakes == woken, "nothing has changed"


def test_the_facts_are_those_of_the_last_time_that_it_was_closed():
    membership = native.GuardedMembership(2)
    assert not membership.in_use
    membership.use()
    assert membership.in_use


def test_a_rank_that_reaches_no_majority_is_stuck_for_all_lanes():
    membership = native.GuardedMembership(2)
    for rank in (1, 2):
        membership.suspect(1.0, rank)
    assert not membership.stuck
    for step in range(200):
        membership.handle_timeout(1.0 + 0.1 * step)
    assert membership.stuck
