"""The usual response time of a peer, and how long to wait for it, in seconds."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

# The value in answer_time.h.
_PATIENCE_MIN = 1.0
_FACTOR = 2
_MEMORY = 240.0

TIMEOUT = 30.0


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
