"""The data of a collective between its calls, as member 0 holds it."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native

MEMBERS = 3
FLOAT = 4


def made(**options):
    return native.DeferredData(members=MEMBERS, **options)


# ---- Late data.


def test_late_results_join_a_bucket_once():
    data = made()
    data.add_late_result(1, 5.0)
    data.add_late_result(1, 0.5)
    data.add_late_result(2, 7.0)
    assert data.move_late_results([1.0, 1.0, 1.0]) == [1.0, 6.5, 8.0]
    assert data.move_late_results([1.0, 1.0, 1.0]) == [1.0, 1.0, 1.0]


def test_a_late_bucket_is_kept_for_the_owners_and_is_zero():
    data = made()
    assert data.defer_all([1.0, 2.0, 3.0]) == [0.0, 0.0, 0.0]
    data.defer_all([10.0, 20.0, 30.0])
    assert [data.pop_deferred(owner) for owner in (1, 2)] == [22.0, 33.0]
    assert data.pop_deferred(1) is None


def test_the_data_for_a_member_that_is_gone_joins_a_bucket_instead():
    data = made()
    data.defer_all([1.0, 2.0, 3.0])
    assert data.move_deferred_sends(2, [0.0, 0.0, 0.5]) == [0.0, 0.0, 3.5]
    assert data.pop_deferred(2) is None
    assert data.pop_deferred(1) == 2.0


def test_late_bytes_are_those_that_no_call_has_had():
    data = made()
    assert data.late_bytes == 0
    data.defer_all([1.0, 2.0, 3.0])
    # The part of this rank is a late contribution, the others are deferred sends.
    assert data.late_bytes == MEMBERS * FLOAT
    data.pop_deferred(1)
    assert data.late_bytes == 2 * FLOAT


def test_data_that_the_newest_call_has_missed_is_not_counted_again_when_it_comes():
    data = made()
    data.note_missed(2 * FLOAT)
    data.add_late_result(1, 5.0)
    assert data.late_bytes == 2 * FLOAT
    data.add_late_result(2, 5.0)
    data.add_late_contribution(5.0)
    assert data.late_bytes == 3 * FLOAT


# ---- Peers that are behind.


def test_a_peer_lags_while_data_of_an_old_call_is_not_delivered():
    data = made(max_lag=2)
    for call in (5, 6, 7):
        data.begin(1, call)
    assert not data.lags(1, 6)
    assert data.lags(1, 7)
    assert data.any_lags(7)
    data.deliver(1, 5)
    assert not data.lags(1, 7)
    assert not data.any_lags(7)


def test_a_suspended_peer_is_not_waited_for_until_it_has_caught_up():
    data = made(max_lag=1)
    for peer in (1, 2):
        data.begin(peer, 5)
        data.begin(peer, 6)
    data.deliver(2, 5)
    data.suspend_lagging(6)
    assert (data.suspended(1), data.suspended(2)) == (True, False)
    assert not data.any_lags(6)
    data.resume_caught_up(6)
    assert data.suspended(1), "it has not caught up"
    data.deliver(1, 5)
    data.resume_caught_up(6)
    assert not data.suspended(1)


def test_where_calls_go_on_no_peer_is_waited_for():
    data = made(max_lag=1, goes_on=True)
    data.begin(1, 5)
    data.begin(1, 6)
    assert data.suspended(1)
    assert not data.any_lags(6)


def test_a_peer_that_is_gone_lacks_nothing():
    data = made(max_lag=1)
    data.begin(1, 5)
    data.begin(1, 6)
    data.release(1)
    assert not data.lags(1, 6)


# ---- Results of the owners.


@hypothesis.given(st.lists(st.booleans(), max_size=20))
def test_complete_calls_count_back_to_the_last_one_with_a_gap(complete):
    data = made()
    for call, whole in enumerate(complete):
        data.note_results(1, call, whole)
    expected = 0
    for whole in reversed(complete):
        if not whole:
            break
        expected += 1
    assert data.complete_before(1, len(complete)) == expected


def test_a_gap_that_becomes_known_later_counts():
    data = made()
    for call in (0, 1, 2):
        data.note_results(1, call, True)
    data.note_results(1, 1, False)
    assert data.complete_before(1, 3) == 0


def test_the_openings_of_the_newest_calls_are_known():
    data = made()
    for call in range(40):
        data.note_opening(call, 10.0 + call)
    assert data.opening_of(39) == 49.0
    assert data.opening_of(24) == 34.0
    assert data.opening_of(23) is None
