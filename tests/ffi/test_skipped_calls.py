"""The calls that a rank skips, of all buckets of a step together."""

import optireduce_testing as native


def _called(*positions):
    skipped = native.SkippedCalls()
    for bucket, position in enumerate(positions):
        skipped.call(bucket, position)
    return skipped


def test_the_usual_number_skips_nothing():
    skipped = _called(4)
    assert skipped.begin(0, 4, 4) == 0
    assert skipped.of(0) == 0


def test_later_calls_keep_the_calls_that_were_skipped():
    skipped = _called(4)
    assert skipped.begin(0, 4, 7) == 3
    skipped.call(0, 5)
    assert skipped.of(0) == 3
    assert skipped.begin(0, 5, 9) == 1
    assert skipped.of(0) == 4


def test_the_buckets_of_a_step_skip_together():
    # Bucket 1 has not been called in this step, bucket 2 already in the next.
    skipped = _called(4, 3, 5)
    skipped.begin(0, 4, 6)
    assert [skipped.of(bucket) for bucket in range(3)] == [2, 2, 2]


def test_a_bucket_that_is_called_less_often_skips_by_itself():
    skipped = _called(40, 4)
    skipped.begin(0, 40, 42)
    assert (skipped.of(0), skipped.of(1)) == (2, 0)


def test_a_part_on_another_lane_that_began_earlier_skips_nothing_more():
    skipped = _called(4)
    skipped.begin(0, 4, 7)
    # The other lane found that number before the first had skipped.
    assert skipped.begin(0, 4, 5) == 0
    assert skipped.of(0) == 3
