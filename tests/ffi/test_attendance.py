"""The position of each member among the calls of a collective that drops late data."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native

# The value in attendance.h.
_CALLS_WITHOUT = 3


def test_a_member_that_never_came_is_not_absent():
    attendance = native.Attendance(2)
    for _ in range(10 * _CALLS_WITHOUT):
        attendance.end_call([False, False])
    assert not attendance.absent(1)


def test_a_member_is_absent_after_a_few_calls_without_it_until_it_is_heard():
    attendance = native.Attendance(3)
    attendance.note(1, 0)
    for call in range(_CALLS_WITHOUT):
        assert not attendance.absent(1), call
        attendance.end_call([False, False, False])
    assert attendance.absent(1)
    # An old call is a sign of life as well: the member is catching up.
    assert not attendance.note(1, 0)
    assert not attendance.absent(1)


@hypothesis.given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 9))
def test_a_member_is_past_a_call_when_it_was_seen_in_two_later_ones(calls, call):
    attendance = native.Attendance(2)
    for at, seen in enumerate(calls):
        two = sorted(set(calls[:at]))[-2:]
        assert attendance.note(1, seen) == (sorted({*two, seen})[-2:] != two)
    assert attendance.past(1, call) == (len({n for n in calls if n > call}) >= 2)


@hypothesis.given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30),
    st.integers(0, 9),
)
def test_a_member_is_past_the_calls_that_it_names(notes, call):
    attendance = native.Attendance(2)
    said, seen = set(), set()
    for past, number in notes:
        if past:
            attendance.note_past(1, number)
            said.add(number)
        else:
            attendance.note(1, number)
            seen.add(number)
    later = {n for n in seen if n > call}
    # Together with data of one later call it may be past this one as well.
    if any(n >= call for n in said) or len(later) >= 2:
        assert attendance.past(1, call)
    if not said and len(later) < 2:
        assert not attendance.past(1, call)


def test_a_call_that_a_member_is_past_is_news_once():
    attendance = native.Attendance(2)
    assert attendance.note_past(1, 4)
    assert not attendance.note_past(1, 4)
    assert not attendance.note_past(1, 3)
    assert (attendance.past(1, 4), attendance.past(1, 5)) == (True, False)


def test_each_call_asks_in_vain_once():
    attendance = native.Attendance(2)
    calls = [0, 0, 1, 0, 1, 3]
    asks = [attendance.asks_in_vain(1, call) for call in calls]
    assert asks == [True, False, True, False, False, True]
