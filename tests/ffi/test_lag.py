"""Estimates about ranks that are behind. Times are in seconds."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

# Of answer_time.h.
_PATIENCE_MIN = 1.0
_FACTOR = 2
_MEMORY = 240.0

# Of attendance.h.
_CALLS_WITHOUT = 3

TIMEOUT = 30.0


# ---- Response times.


@hypothesis.given(st.lists(st.floats(0, 0.4 * _PATIENCE_MIN), max_size=50))
def test_answers_within_half_a_second_leave_the_patience_as_it_is(gaps):
    times = native.AnswerTime()
    for now, gap in enumerate(gaps):
        times.note(float(now), gap, TIMEOUT)
    assert times.patience(TIMEOUT) == _PATIENCE_MIN


def test_a_peer_whose_answers_take_long_is_waited_for_twice_as_long():
    times = native.AnswerTime()
    times.note(10.0, 0.9, TIMEOUT)
    assert times.patience(TIMEOUT) == pytest.approx(_FACTOR * 0.9)


def test_a_silence_of_minutes_teaches_no_more_than_where_it_was_noticed():
    times = native.AnswerTime()
    times.note(10.0, 25.0, TIMEOUT)
    assert times.patience(TIMEOUT) == _FACTOR * _PATIENCE_MIN
    times.note(20.0, 25.0, TIMEOUT)
    assert times.patience(TIMEOUT) == _FACTOR**2 * _PATIENCE_MIN


def test_a_slow_answer_is_remembered_for_minutes():
    times = native.AnswerTime()
    times.note(130.0, 0.9, TIMEOUT)
    for second in range(int(_MEMORY) - 1):
        times.note(131.0 + second, 0.01, TIMEOUT)
        assert times.patience(TIMEOUT) == pytest.approx(_FACTOR * 0.9)


def test_a_slow_answer_is_forgotten_after_some_minutes():
    times = native.AnswerTime()
    times.note(10.0, 0.9, TIMEOUT)
    for now in (_MEMORY, 2 * _MEMORY):
        times.note(10.0 + now, 0.01, TIMEOUT)
    assert times.patience(TIMEOUT) == _PATIENCE_MIN


@hypothesis.given(
    st.lists(st.tuples(st.floats(0, 300), st.floats(0, 600)), max_size=50),
    st.floats(0.01, 600),
)
def test_the_patience_never_exceeds_the_timeout_of_peers(notes, timeout):
    times = native.AnswerTime()
    now = 0.0
    for pause, gap in notes:
        now += pause
        times.note(now, gap, timeout)
        assert times.patience(timeout) <= timeout + 1e-9
        assert times.patience(timeout) >= min(_PATIENCE_MIN, timeout) - 1e-9


# ---- Positions of the members.


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
    newest = [seen for seen in calls if attendance.note(1, seen)]
    assert newest == sorted(set(newest))
    assert attendance.past(1, call) == (len([n for n in newest if n > call]) >= 2)
