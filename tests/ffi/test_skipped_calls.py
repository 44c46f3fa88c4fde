"""The calls that a rank skips, bucket by bucket."""

import optireduce_testing as native


def test_the_usual_number_skips_nothing():
    skipped = native.SkippedCalls()
    assert skipped.begin(0, 4, 4) == 0
    assert skipped.of(0) == 0


def test_later_calls_keep_the_calls_that_were_skipped():
    skipped = native.SkippedCalls()
    assert skipped.begin(0, 4, 7) == 3
    assert skipped.of(0) == 3
    assert skipped.begin(0, 5, 9) == 1
    assert skipped.of(0) == 4


def test_a_bucket_skips_no_call_for_another_one():
    skipped = native.SkippedCalls()
    assert skipped.begin(0, 4, 6) == 2
    # It is called for the first time, in the same step.
    assert skipped.begin(1, 0, 3) == 3
    assert [skipped.of(bucket) for bucket in range(3)] == [2, 3, 0]


def test_a_part_on_another_lane_that_began_earlier_skips_nothing_more():
    skipped = native.SkippedCalls()
    skipped.begin(0, 4, 7)
    # The other lane found that number before the first had skipped.
    assert skipped.begin(0, 4, 5) == 0
    assert skipped.of(0) == 3
