"""The statistics of one call of member 0; ranks count from 10, times are in seconds."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

MEMBERS = 4
BYTES = 4 * 100


def made():
    return native.CallStatsBuilder(MEMBERS, BYTES // 4)


def test_without_a_result_everything_is_missing():
    results, contributions = made().missing()
    assert (results, contributions) == (1.0, 0.0)


def test_whole_results_miss_nothing():
    builder = made()
    for owner in range(MEMBERS):
        builder.note_result(owner, BYTES // MEMBERS, MEMBERS)
    assert builder.missing_bytes == 0
    assert builder.missing() == (0.0, 0.0)


@hypothesis.given(
    st.lists(
        st.tuples(st.integers(1, 10), st.integers(1, MEMBERS)), min_size=1, max_size=40
    )
)
def test_missing_contributions_are_those_of_the_results_that_came(results):
    builder = made()
    for words, contributors in results:
        builder.note_result(1, words, contributors)
    came = sum(words for words, _ in results)
    contributed = sum(words * contributors for words, contributors in results)
    missing_results, missing_contributions = builder.missing()
    assert missing_results == pytest.approx(1 - came / BYTES)
    assert missing_contributions == pytest.approx(1 - contributed / (came * MEMBERS))
    assert builder.missing_bytes == BYTES - came


def test_the_slowest_is_the_one_with_the_most_missing_data():
    builder = made()
    for member in (1, 2, 3):
        builder.note_arrival(1.0, member)
    rank, _, absent = builder.slowest(0.0, 2.0, [0, 1, 5, 2])
    assert (rank, absent) == (12, [])


def test_with_nothing_missing_the_slowest_came_last():
    builder = made()
    for now, member in [(1.0, 3), (1.1, 1), (4.0, 2)]:
        builder.note_arrival(now, member)
    rank, behind, absent = builder.slowest(0.0, 4.0, [0] * MEMBERS)
    assert (rank, absent) == (12, [])
    # After the data of all others.
    assert behind == pytest.approx(4.0 - 1.1)


def test_a_member_of_which_nothing_came_is_absent():
    builder = made()
    for member in (1, 3):
        builder.note_arrival(1.0, member)
    rank, _, absent = builder.slowest(0.0, 2.0, [0, 0, 7, 0])
    assert (rank, absent) == (12, [12])
