"""The newest call of the other ranks, and the number of a drain."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native

# The value in call_numbers.h.
_INTERVALS = 8
_INTERVALS_PER_OUTLIER = 4
_MARGIN = 2


def test_the_newest_call_is_that_of_any_member():
    numbers = native.CallNumbers()
    assert numbers.newest() is None
    for now, member, call in [(1.0, 1, 3), (2.0, 2, 5), (3.0, 1, 4)]:
        numbers.note_called(now, member, call)
    assert numbers.newest() == 5


def test_without_a_second_call_the_next_one_is_due_at_once():
    numbers = native.CallNumbers()
    numbers.note_called(5.0, 1, 0)
    assert numbers.next_due() == 5.0


@hypothesis.given(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
def test_the_next_call_is_due_after_twice_the_longest_usual_pause(pauses):
    numbers = native.CallNumbers()
    now = 0.0
    numbers.note_called(now, 1, 0)
    for call, pause in enumerate(pauses, start=1):
        now += pause
        numbers.note_called(now, 1, call)
    recent = sorted(pauses[-_INTERVALS:])
    usual = recent[: len(recent) - len(recent) // _INTERVALS_PER_OUTLIER]
    assert numbers.next_due() == now + _MARGIN * usual[-1]


def test_a_sum_shows_a_call_of_some_member():
    # A rank that owns no part of a small bucket gets sums only.
    numbers = native.CallNumbers()
    numbers.note_called(1.0, 2, 3)
    numbers.note_sum(2.0, 5)
    assert numbers.newest() == 5
    numbers.note_sum(3.0, 4)
    assert numbers.newest() == 5


def test_ranks_wait_less_often_the_more_waits_were_in_vain():
    numbers = native.CallNumbers()
    waits = []
    for call in range(200):
        waits.append(numbers.may_wait(call))
        numbers.begin(call, behind=True)
    assert waits[0]
    assert 1 < sum(waits[:20]) < 10
    assert sum(waits[100:]) < 10


def test_ranks_that_are_behind_wait_in_calls_of_the_same_numbers():
    # The one skips every second call; the other had fewer waits in vain.
    often, rarely = native.CallNumbers(), native.CallNumbers()
    for call in range(1, 33, 2):
        rarely.begin(call, behind=True)
    often.begin(0, behind=True)
    both = [
        call
        for call in range(33, 600)
        if often.may_wait(call) and rarely.may_wait(call)
    ]
    assert {call % 2 for call in both} == {0, 1}


def test_a_rank_in_step_waits_again():
    numbers = native.CallNumbers()
    numbers.begin(0, behind=True)
    assert not numbers.may_wait(5)
    numbers.begin(4, behind=False)
    assert numbers.may_wait(5)


def test_a_member_drains_until_it_makes_a_later_call():
    numbers = native.CallNumbers()
    numbers.note_draining(1, 7)
    numbers.note_called(1.0, 1, 6)
    assert numbers.draining(1) == 7
    numbers.note_called(2.0, 1, 8)
    assert numbers.draining(1) is None


def test_the_least_number_of_a_member_only_rises():
    numbers = native.CallNumbers()
    for least in (5, 9, 7):
        numbers.note_draining(1, least)
    assert numbers.draining(1) == 9


def test_a_drain_that_has_begun_here_is_news_of_nobody():
    numbers = native.CallNumbers()
    numbers.note_draining(1, 9)
    numbers.begin_drain(9)
    # The datagrams of that drain may come again.
    numbers.note_draining(1, 9)
    numbers.note_begun(9)
    assert (numbers.draining(1), numbers.begun()) == (None, None)
    numbers.note_begun(10)
    assert numbers.begun() == 10
