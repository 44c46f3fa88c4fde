"""Sums of other owners that arrive and become the result."""

import pytest
from call_stages import VALUES, Call


def all_results(call, now=0.0):
    for owner, segments in [(1, (2, 3)), (2, (4, 5))]:
        for segment in segments:
            assert call.result(now, owner, segment, 100.0 + segment, 3) == "new"


def test_results_go_into_the_bucket():
    call = Call("exact")
    all_results(call)
    assert call.bucket[2:] == [102.0, 103.0, 104.0, 105.0]
    assert call.bucket[:2] == VALUES[:2], "this rank's shard comes from its sums"
    assert [call.not_received(owner) for owner in (0, 1, 2)] == [2, 0, 0]
    assert not call.complete


def test_a_repetition_changes_nothing():
    call = Call("exact")
    call.result(0.0, 1, 2, 7.0, 3)
    assert call.result(0.0, 1, 2, 8.0, 3) == "duplicate"
    assert call.bucket[2] == 7.0


@pytest.mark.parametrize(
    ("owner", "segment", "contributors"),
    [(1, 4, 3), (0, 0, 3), (1, 6, 3), (1, 2, 4)],
    ids=[
        "the shard of another",
        "this rank's shard",
        "no segment",
        "too many contributors",
    ],
)
def test_a_result_that_cannot_be_is_refused(owner, segment, contributors):
    call = Call("exact")
    assert call.result(0.0, owner, segment, 7.0, contributors) == "mismatched"


def test_results_that_come_before_the_program_are_kept_for_it():
    call = Call("bounded", submitted=False)
    assert call.early_bytes > 0
    call.result(0.0, 1, 2, 7.0, 2)
    assert call.early_bytes == 0, "it holds the memory"
    call.submit(1.0, VALUES)
    assert call.bucket[2:4] == [7.0, VALUES[3]]


def test_the_memory_of_early_results_is_given_back_to_the_pool():
    call = Call("lossy", submitted=False)
    before = call.used_bytes
    call.result(0.0, 1, 2, 7.0, 2)
    assert call.used_bytes > before
    call.submit(1.0, VALUES)
    assert call.used_bytes == before


def test_an_exact_sum_cannot_come_before_the_own_contribution():
    call = Call("exact", submitted=False)
    assert call.result(0.0, 1, 2, 7.0, 3) == "mismatched"
    assert call.early_bytes == 0


def test_missing_results_are_zero():
    call = Call("bounded")
    call.result(0.0, 1, 2, 7.0, 3)
    call.zero_missing()
    assert call.bucket == [0.0, 0.0, 7.0, 0.0, 0.0, 0.0]


def test_a_result_after_the_end_joins_a_later_call():
    call = Call("bounded")
    call.end()
    assert call.result(0.5, 1, 3, 7.0, 3) == "late"
    assert call.late_results() == [0.0, 0.0, 0.0, 7.0, 0.0, 0.0]


def test_results_of_an_absent_owner_are_not_waited_for():
    call = Call("lossy")
    for segment in (2, 3):
        call.result(0.0, 1, segment, 7.0, 3)
    call.make_results_optional(2)
    assert not call.complete
    call.exclude_results(0)
    assert call.complete
