"""Contributions to this rank's shard that arrive and become sums."""

import hypothesis
import pytest
from call_stages import OWN, Call
from hypothesis import strategies as st


@hypothesis.given(st.permutations([(m, s) for m in (1, 2) for s in OWN]))
def test_a_segment_is_summed_when_all_its_contributions_are_there(order):
    call = Call("exact")
    seen = dict.fromkeys(OWN, 0)
    for member, segment in order:
        assert call.contribute(0.0, member, segment, 10.0 * member) == "new"
        seen[segment] += 1
        ready = [s for s in OWN if seen[s] == 2]
        assert sorted(s for s, _, _ in call.sums) == ready
    assert sorted(call.sums) == [(0, 31.0, 3), (1, 32.0, 3)]
    assert call.finished


def test_a_repetition_counts_once():
    call = Call("exact")
    assert call.contribute(0.0, 1, 0, 10.0) == "new"
    assert call.contribute(0.0, 1, 0, 10.0) == "duplicate"


def test_without_the_program_there_is_no_sum():
    call = Call("exact", submitted=False)
    call.contribute_all(1, 2)
    assert call.sums == []


@pytest.mark.parametrize(
    ("mode", "sums"),
    [("bounded", [(0, 11.0, 2), (1, 2.0, 1)]), ("lossy", [(0, 16.5, 2), (1, 6.0, 1)])],
)
def test_a_closed_stage_sums_what_is_there(mode, sums):
    # With "drop" a sum of k of n contributions is n / k times itself.
    call = Call(mode)
    call.contribute(0.0, 1, 0, 10.0)
    call.close()
    assert sorted(call.sums) == sums
    assert [call.missing(member) for member in (1, 2)] == [1, 2]


def test_a_late_contribution_joins_the_next_call():
    call = Call("bounded")
    call.close()
    assert call.contribute(0.0, 1, 0, 10.0) == "late"
    assert call.late_contribution(0) == 10.0
    assert call.late_contribution(1) is None


def test_late_contributions_of_calls_before_join_the_sum():
    call = Call("bounded", sequence=1)
    assert call.over(0.0, 1, 0, 0, 100.0) == "late"
    call.contribute_all(1, 2)
    assert sorted(call.sums) == [(0, 131.0, 3), (1, 32.0, 3)]
    assert call.holds_deferred(0)
    assert not call.holds_deferred(1)
    assert call.late_contribution(0) is None


def test_segments_close_one_by_one_after_the_deadline():
    call = Call("bounded")
    call.begin_closing()
    call.close_next()
    assert [segment for segment, _, _ in call.sums] == [0]
    assert call.contribute(0.0, 1, 1, 10.0) == "new", "it is not closed yet"
    call.close_next()
    assert [segment for segment, _, _ in call.sums] == [0, 1]


def test_an_optional_member_is_not_waited_for():
    call = Call("lossy")
    call.make_optional(2)
    call.contribute_all(1)
    assert [segment for segment, _, _ in call.sums] == [0, 1]


def test_an_excluded_member_is_in_no_sum():
    call = Call("bounded", drain=True)
    call.contribute_all(1)
    assert call.sums == []
    call.exclude(2)
    assert sorted(call.sums) == [(0, 11.0, 2), (1, 12.0, 2)]


def test_after_an_incomplete_sum_it_is_too_late_for_a_drain():
    call = Call("bounded")
    assert call.drain()
    call.begin_closing()
    call.close_next()
    assert not call.drain()
