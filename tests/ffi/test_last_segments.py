"""Whether the last segments of every peer have come."""

import optireduce_testing as native


def test_a_stage_that_expects_nothing_is_complete():
    assert native.LastSegments(3).complete()


def test_the_last_segments_of_every_member_are_waited_for():
    last = native.LastSegments(3)
    last.expect(1)
    last.expect(2)
    last.see(1)
    last.see(1)
    assert not last.complete()
    last.see(2)
    assert last.complete()


def test_a_member_that_is_heard_again_is_waited_for_again():
    last = native.LastSegments(2)
    last.expect(1)
    last.see(1)
    last.expect(1)
    assert not last.complete()


def test_the_time_is_that_of_the_newest_segment():
    last = native.LastSegments(2)
    last.note(2.0)
    last.note(1.0)
    assert last.last() == 2.0
