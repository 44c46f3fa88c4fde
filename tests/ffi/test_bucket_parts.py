"""The split of a bucket across lanes, and the outcome of its parts."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native


def test_a_small_bucket_stays_whole_and_its_name_chooses_the_lane():
    lanes = set()
    for number in range(100):
        name = f"x{number}"
        (part,) = native.cut_bucket(name, [3, 4], lanes=4, cut_bytes_min=100)
        assert part[1:] == (7, [(0, 3), (3, 7)])
        assert native.cut_bucket(name, [3, 4], lanes=4, cut_bytes_min=100) == [part]
        lanes.add(part[0])
    assert lanes == {0, 1, 2, 3}


def test_a_bucket_is_cut_from_the_given_size_on():
    def parts(elements):
        return len(native.cut_bucket("x", [elements], lanes=2, cut_bytes_min=400))

    assert parts(100) == 2
    assert parts(99) == 1


def test_one_lane_carries_all():
    assert native.cut_bucket("x", [1000], lanes=1, cut_bytes_min=0) == [
        (0, 1000, [(0, 1000)])
    ]


@hypothesis.given(
    leaves=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    lanes=st.integers(2, 9),
)
def test_parts_are_alike_in_size_and_hold_each_element_once(leaves, lanes):
    parts = native.cut_bucket("x", leaves, lanes=lanes, cut_bytes_min=0)
    assert [lane for lane, _, _ in parts] == list(range(lanes))
    sizes = [elements for _, elements, _ in parts]
    assert max(sizes) - min(sizes) <= 1
    held = [list(range(*piece)) for _, _, pieces in parts for piece in pieces]
    assert sum(held, []) == list(range(sum(leaves)))  # noqa: RUF017 (small)
    for _, elements, pieces in parts:
        assert sum(end - begin for begin, end in pieces) == elements


def test_the_first_error_of_a_part_is_that_of_the_call():
    outcomes = native.PartOutcomes()
    outcomes.add(10)
    outcomes.add(10, error="rank 1 has left")
    outcomes.add(10, error="rank 2 has left")
    assert outcomes.error == "rank 1 has left"


def test_what_is_missing_counts_by_elements():
    outcomes = native.PartOutcomes()
    outcomes.add(100, missing_results=0.5, missing_contributions=0.2)
    outcomes.add(300)
    assert outcomes.missing_results == pytest.approx(50 / 400)
    # Only the results that arrived count: 50 of the first part.
    assert outcomes.missing_contributions == pytest.approx(0.2 * 50 / 350)


def test_a_call_without_any_result_misses_no_contribution():
    outcomes = native.PartOutcomes()
    outcomes.add(100, missing_results=1.0)
    assert outcomes.missing_contributions == 0
    assert outcomes.missing_results == 1


def test_the_slowest_rank_is_that_of_the_part_which_took_longest():
    outcomes = native.PartOutcomes()
    outcomes.add(10, elapsed_s=0.1, slowest=1, live=3)
    outcomes.add(10, elapsed_s=0.3, slowest=2, live=2)
    outcomes.add(10, elapsed_s=0.2, slowest=3, live=3)
    assert (outcomes.elapsed_s, outcomes.slowest, outcomes.live) == (0.3, 2, 2)


def test_every_part_of_a_drain_is_a_drain():
    assert native.cut_drain(elements=1000, lanes=3) == [True] * 3
