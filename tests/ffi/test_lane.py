"""Threads that drive endpoints on real sockets."""

import pytest

import optireduce_testing as native


def errors(lanes, count) -> dict[tuple[int, int], str]:
    """Errors of calls, by rank and sequence."""
    return {(end.rank, end.sequence): end.error for end in lanes.ended(count)}


def test_the_counters_of_a_lane_include_a_call_when_it_ends():
    lanes = native.Lanes(2)
    for sequence in range(3):
        for rank in range(2):
            lanes.submit(rank, [1.0] * 5000, sequence=sequence)
        ended = lanes.ended(2 * sequence + 2)[-2:]
        assert [end.counted for end in ended] == [sequence + 1] * 2


@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded", "lossy"])
def test_calls_end_on_the_threads_of_the_lanes_with_the_sum(mode):
    lanes = native.Lanes(2)
    for rank in range(2):
        lanes.submit(rank, [1.0 + rank] * 5000, mode=mode)
    for end in lanes.ended(2):
        assert (end.error, set(end.values)) == ("", {3.0})
        assert end.on_own_thread


def test_a_cancelled_call_ends_on_all_ranks_and_later_ones_are_not_concerned():
    lanes = native.Lanes(2)
    # Rank 1 owns the whole of a smaller bucket, and needs no sum of rank 0.
    values = [1.0] * 5000
    lanes.submit(0, values, sequence=0)
    lanes.cancel(0, "interrupted")
    lanes.submit(0, values, sequence=1)
    for sequence in range(2):
        lanes.submit(1, values, sequence=sequence)
    ended = errors(lanes, 4)
    assert ended[0, 0] == "interrupted"
    assert "rank 0 has stopped with this error: interrupted" in ended[1, 0]
    assert ended[0, 1] == ended[1, 1] == ""


def test_peers_learn_of_a_call_that_is_never_made():
    lanes = native.Lanes(2)
    lanes.give_up(0, 1, 0, "its device has failed")
    lanes.submit(1, [1.0])
    assert "its device has failed" in errors(lanes, 1)[1, 0]


def test_a_lane_that_closes_fails_what_is_under_way_and_tells_its_peers():
    lanes = native.Lanes(2)
    lanes.submit(0, [1.0] * 5000)
    lanes.close(0, "the program has ended")
    lanes.submit(1, [1.0] * 5000)
    ended = errors(lanes, 2)
    assert ended[0, 0] == "the program has ended"
    # Rank 1 first hears either that a call failed or that rank 0 has left.
    assert "rank 0 has" in ended[1, 0]
    assert "the program has ended" in ended[1, 0]
    lanes.submit(1, [1.0], sequence=1)
    assert "rank 0 has left" in errors(lanes, 3)[1, 1]


def test_a_lane_that_has_closed_refuses_on_the_thread_that_submits():
    lanes = native.Lanes(1)
    lanes.close(0, "the program has ended")
    lanes.close(0, "again")
    lanes.submit(0, [1.0])
    (end,) = lanes.ended(1)
    assert end.error == "the program has ended"
    assert not end.on_own_thread


def test_a_lane_that_closes_first_brings_its_peers_what_they_need():
    for _ in range(5):
        lanes = native.Lanes(3)
        for rank in range(3):
            lanes.submit(rank, [1.0] * 30_000)
        first = lanes.ended(1)[0]
        lanes.close(first.rank, "its program has ended")
        for end in lanes.ended(3):
            assert (end.error, set(end.values)) == ("", {3.0})


def test_a_cancel_ends_queued_calls_and_none_that_come_after_it():
    lanes = native.Lanes(2)
    # Both calls and the cancel wait for the thread of the lane.
    lanes.hold(0)
    lanes.submit(0, [1.0], sequence=0)
    lanes.cancel(0, "interrupted")
    lanes.submit(0, [1.0], sequence=1)
    lanes.release()
    lanes.submit(1, [1.0], sequence=1)
    ended = errors(lanes, 3)
    assert ended == {(0, 0): "interrupted", (0, 1): "", (1, 1): ""}


def test_a_batch_that_the_port_refuses_is_sent_next_and_once():
    lanes = native.Lanes(2, busy=True)
    for rank in range(2):
        lanes.submit(rank, [1.0 + rank] * 300_000)
    for end in lanes.ended(2):
        assert (end.error, set(end.values)) == ("", {3.0})
    for rank in range(2):
        lanes.close(rank, "the test is over")
    for rank in range(2):
        refused, wrong = lanes.refusals(rank)
        assert refused > 0
        assert wrong == 0


def test_a_lane_sleeps_no_longer_than_the_deadline_of_its_call():
    slept_s = 0.0
    # On a busy machine a lane may have its first turn after the deadline.
    while slept_s == 0.0:
        lanes = native.Lanes(2)
        # Without the peer only a deadline ends it.
        lanes.submit(0, [1.0], mode="lossy", deadline_s=0.1)
        (end,) = lanes.ended(1)
        assert end.error == ""
        slept_s = end.last_sleep_s
    assert slept_s <= 0.1


def test_calls_under_way_end_when_their_lane_meets_an_error():
    lanes = native.Lanes(2)
    lanes.submit(0, [1.0])
    lanes.break_port(0)
    (end,) = lanes.ended(1)
    assert end.error == "this lane stopped: the port is broken"
    lanes.submit(0, [1.0], sequence=1)
    assert lanes.ended(2)[1].error == end.error


def test_a_lane_reports_between_two_turns_and_its_asker_waits_no_longer_than_told():
    lanes = native.Lanes(2)
    assert lanes.answers(0, 20.0)
    lanes.hold(0)
    assert not lanes.answers(0, 0.05)
    assert lanes.answers(1, 20.0)
    lanes.release()
    assert lanes.answers(0, 20.0)
    lanes.close(0, "the program has ended")
    assert not lanes.answers(0, 0.05)
