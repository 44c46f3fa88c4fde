"""Arrivals: the rank that a call waited for, and for how long.

Times are in seconds.
"""

import statistics

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native


def test_the_one_that_came_last_is_behind_the_others():
    arrivals = native.Arrivals(0, 4)
    for at, member in [(1.0, 1), (1.1, 2), (1.3, 3), (1.5, 3)]:
        arrivals.note(at, member)
    member, behind, absent = arrivals.find_latest(0.5, 2.0)
    assert (member, behind, absent) == (3, pytest.approx(0.4), False)


def test_no_member_is_behind_a_program_that_came_last_itself():
    arrivals = native.Arrivals(0, 4)
    for at, member in [(1.0, 1), (1.1, 2), (1.5, 3)]:
        arrivals.note(at, member)
    assert arrivals.find_latest(1.6, 2.0)[1] == 0


def test_a_member_of_which_nothing_came_is_behind_until_the_end():
    arrivals = native.Arrivals(1, 3)
    arrivals.note(1.0, 0)
    assert arrivals.find_latest(0.9, 3.0) == (2, pytest.approx(2.0), True)


def test_with_one_peer_the_time_of_a_large_bucket_is_not_its_lateness():
    arrivals = native.Arrivals(0, 2)
    for i in range(100):
        arrivals.note(1.0 + i / 100, 1)
    assert arrivals.find_latest(1.0, 2.0)[1] == 0
    assert arrivals.find_latest(0.75, 2.0)[1] == pytest.approx(0.25)


@hypothesis.given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=7), st.integers(0, 1000)
)
def test_behind_is_the_wait_after_the_middle_one_of_the_others(times, submitted):
    arrivals = native.Arrivals(0, len(times) + 1)
    for member, at in enumerate(times, 1):
        arrivals.note(at, member)
    member, behind, absent = arrivals.find_latest(submitted, 2000)
    ready = submitted
    if len(times) > 1:
        ready = max(submitted, statistics.median_low(times))
    assert times[member - 1] == max(times)
    assert behind == max(0, max(times) - ready)
    assert not absent


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 6)), max_size=30),
    st.integers(0, 8),
)
def test_the_last_arrivals_are_those_of_the_slowest_members(notes, count):
    arrivals = native.Arrivals(0, 7)
    last = {}
    for at, member in sorted(notes):
        arrivals.note(at, member)
        last[member] = at
    expected = sorted(last.items(), key=lambda of: (-of[1], of[0]))[:count]
    assert arrivals.find_last(count) == expected


def test_of_one_peer_the_first_arrival_counts():
    arrivals = native.Arrivals(0, 2)
    for at in (1.0, 2.0):
        arrivals.note(at, 1)
    assert arrivals.find_last(8) == [(1, 1.0)]
