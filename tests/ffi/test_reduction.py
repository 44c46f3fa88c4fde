"""The sums of a shard at its owner: each contribution once, none of the excluded."""

import optireduce_testing as native


def test_a_sum_is_made_when_all_are_there_and_each_counts_once():
    reduction = native.Reduction(4)
    assert reduction.receive(2, 100.0)
    assert not reduction.receive(2, 100.0)
    assert reduction.receive(1, 10.0)
    assert reduction.sum() is None
    assert reduction.receive(3, 1000.0)
    assert reduction.sum() == 1110.0


def test_what_comes_of_an_excluded_member_is_neither_counted_nor_added():
    reduction = native.Reduction(4)
    reduction.exclude(3)
    assert not reduction.receive(3, 1000.0)
    assert reduction.receive(1, 10.0)
    # It would take the place of rank 2, if it counted.
    assert reduction.sum() is None
    assert reduction.receive(2, 100.0)
    assert reduction.sum() == 110.0


def test_what_came_of_a_member_before_it_was_excluded_is_in_the_sum():
    reduction = native.Reduction(3)
    assert reduction.receive(2, 100.0)
    reduction.exclude(2)
    assert reduction.sum() is None
    assert reduction.receive(1, 10.0)
    assert reduction.sum() == 110.0
    assert not reduction.receive(2, 100.0)


def test_the_last_member_that_is_waited_for_may_be_excluded():
    reduction = native.Reduction(3)
    assert reduction.receive(1, 10.0)
    reduction.exclude(2)
    assert reduction.sum() == 10.0
