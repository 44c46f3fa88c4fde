"""The rendezvous of one process's devices: one call leaves, with the sum of all."""

import itertools

import pytest

import optireduce_testing as native


def by_rank(ends) -> dict[int, "native.DeviceEnd"]:
    return {end.rank: end for end in ends}


def test_the_network_gets_the_sum_of_the_devices_and_all_get_its_result():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(1, [10.0, 20.0])
    rendezvous.start(0, [1.0, 2.0])
    (call,) = rendezvous.network(1)
    assert (call.sequence, call.values) == (0, [11.0, 22.0])
    rendezvous.finish(0, added=100.0)
    for end in rendezvous.ended(2):
        assert (end.error, end.sequence, end.values) == ("", 0, [111.0, 122.0])


def test_values_of_devices_may_lie_apart_from_their_results():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(1, [10.0], apart=True)
    rendezvous.start(0, [1.0], apart=True)
    assert rendezvous.network(1)[0].values == [11.0]
    rendezvous.finish(0, added=100.0)
    assert [end.values for end in rendezvous.ended(2)] == [[111.0]] * 2


@pytest.mark.parametrize("mode", ["exact", "lossy"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_drain_without_late_data_has_its_values_as_the_result(mode, apart):
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [0.0, 0.0], mode=mode, drain=True, apart=apart)
    (end,) = rendezvous.ended(1)
    assert (end.error, end.values) == ("", [0.0, 0.0])


def test_a_device_that_is_alone_meets_nobody():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [5.0], devices=1)
    assert rendezvous.network(1)[0].values == [5.0]


def test_an_error_of_the_network_is_that_of_every_device():
    rendezvous = native.DeviceRendezvous()
    for rank in range(2):
        rendezvous.start(rank, [1.0])
    rendezvous.finish(0, error="rank 3 has left")
    assert [end.error for end in rendezvous.ended(2)] == ["rank 3 has left"] * 2


def test_devices_that_start_calls_in_different_order_meet_by_name():
    rendezvous = native.DeviceRendezvous()
    for rank, names in ((0, "ab"), (1, "ba")):
        for name in names:
            rendezvous.start(rank, [1.0 if name == "a" else 5.0], name=name)
    sums = {call.name: call.values for call in rendezvous.network(2)}
    assert sums == {"a": [2.0], "b": [10.0]}


def test_calls_are_counted_and_a_step_has_to_grow():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0], devices=1, step=7)
    assert rendezvous.network(1)[0].sequence == 7
    rendezvous.finish(0)
    rendezvous.ended(1)
    rendezvous.start(0, [1.0], devices=1)
    assert rendezvous.network(2)[1].sequence == 8
    rendezvous.finish(1)
    rendezvous.ended(2)
    rendezvous.start(0, [1.0], devices=1, step=8)
    assert "step must grow" in rendezvous.ended(3)[2].error


def test_a_second_call_of_a_device_under_one_name_is_refused():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0])
    rendezvous.start(0, [1.0])
    (end,) = rendezvous.ended(1)
    assert "need names of their own" in end.error
    assert rendezvous.failures() == 1
    # The first device continues.
    rendezvous.start(1, [2.0])
    assert rendezvous.network(1)[0].values == [3.0]


def test_devices_that_disagree_fail_together_and_the_network_is_told():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0])
    rendezvous.start(1, [1.0, 1.0])
    for end in rendezvous.ended(2):
        assert "do not agree" in end.error
    assert {call.sequence for call in rendezvous.given_up()} == {0}
    for rank in range(2):
        rendezvous.start(rank, [1.0])
    assert rendezvous.network(1)[0].sequence == 1


def test_devices_in_different_steps_are_not_added_up():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0], step=1)
    rendezvous.start(1, [1.0], step=2)
    for end in rendezvous.ended(2):
        assert "do not agree" in end.error


def test_devices_are_added_in_the_order_of_their_ranks():
    # The sum depends on the order.
    values = [1e8, 1.0, -1e8]
    rendezvous = native.DeviceRendezvous()
    for i, order in enumerate(itertools.permutations(range(3))):
        for rank in order:
            rendezvous.start(rank, [values[rank]], name=str(i), devices=3)
    assert {call.values[0] for call in rendezvous.network(6)} == {0.0}


def test_no_device_gets_its_result_from_memory_that_is_in_use_again():
    rendezvous = native.DeviceRendezvous()
    for call in range(20):
        for rank in range(8):
            rendezvous.start(rank, [1.0] * 50_000, devices=8)
        rendezvous.finish(call)
        ended = rendezvous.ended(8 * (call + 1))[8 * call :]
        assert [end.values == [8.0] * 50_000 for end in ended] == [True] * 8


def test_groups_of_the_same_processes_are_different_calls_to_the_network():
    rendezvous = native.DeviceRendezvous()
    for group in range(2):
        rendezvous.start(group, [1.0 + group], devices=1, group=group, groups=2)
    calls = rendezvous.network(2)
    assert len({call.name for call in calls}) == 2
    assert {call.values[0] for call in calls} == {1.0, 2.0}


def test_a_call_that_is_cancelled_before_its_sum_is_known_is_not_made():
    rendezvous = native.DeviceRendezvous(threads=1)
    rendezvous.hold()
    for rank in range(2):
        rendezvous.start(rank, [1.0])
    rendezvous.cancel("interrupted")
    rendezvous.release()
    assert [end.error for end in rendezvous.ended(2)] == ["interrupted"] * 2
    assert {call.given_up for call in rendezvous.given_up()} == {"interrupted"}


def test_devices_that_count_differently_after_a_failure_start_anew_together():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0])
    rendezvous.cancel("interrupted")
    rendezvous.ended(1)
    # It waits in its second call, while the other one comes to its first.
    rendezvous.start(0, [1.0])
    rendezvous.start(1, [1.0])
    assert all("interrupted" in end.error for end in rendezvous.ended(3))
    for rank in range(2):
        rendezvous.start(rank, [1.0])
    assert rendezvous.network(1)[0].values == [2.0]


def test_a_cancelled_call_fails_on_the_device_that_comes_later_too():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0])
    rendezvous.cancel("interrupted")
    assert rendezvous.ended(1)[0].error == "interrupted"
    rendezvous.start(1, [1.0])
    late = rendezvous.ended(2)[1]
    assert late.rank == 1
    assert "had failed before rank 1 started it: interrupted" in late.error
    # Both continue with the same call.
    for rank in range(2):
        rendezvous.start(rank, [1.0])
    assert rendezvous.network(1)[0].values == [2.0]


def test_a_device_that_waits_too_long_is_told_of_and_then_fails():
    rendezvous = native.DeviceRendezvous(call_timeout_s=0.05, stall_timeout_s=0.01)
    rendezvous.start(0, [1.0], devices=3)
    rendezvous.start(2, [1.0], devices=3)
    assert rendezvous.missing(1) == [[1]]
    for end in rendezvous.ended(2):
        assert "1" in end.error
    assert by_rank(rendezvous.ended(2)).keys() == {0, 2}
    assert rendezvous.failures() == 1


def test_after_its_end_every_call_fails_at_once():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0])
    rendezvous.close("the program has ended")
    rendezvous.start(1, [1.0])
    assert [end.error for end in rendezvous.ended(2)] == ["the program has ended"] * 2


def test_a_begun_call_waits_for_the_previous_one_of_its_device():
    rendezvous = native.DeviceRendezvous()
    for call in range(3):
        for rank in range(2):
            rendezvous.start(rank, [1.0 + call], begun=True)
    for call in range(3):
        (*_, sent) = rendezvous.network(call + 1)
        assert (sent.sequence, sent.values) == (call, [2.0 * (1 + call)])
        rendezvous.finish(call)
        assert len(rendezvous.ended(2 * (call + 1))) == 2 * (call + 1)
    assert rendezvous.failures() == 0


def test_another_call_waits_for_a_begun_one_and_a_third_is_refused():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0], devices=1, begun=True)
    rendezvous.start(0, [2.0], devices=1)
    rendezvous.start(0, [3.0], devices=1)
    (refused,) = rendezvous.ended(1)
    assert "need names of their own" in refused.error
    rendezvous.finish(0)
    assert rendezvous.network(2)[1].values == [2.0]
    rendezvous.finish(1)
    assert [end.values for end in rendezvous.ended(3)][1:] == [[1.0], [2.0]]


def test_a_begun_call_waits_for_one_that_was_not():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0], devices=1)
    rendezvous.start(0, [2.0], devices=1, begun=True)
    rendezvous.finish(0)
    rendezvous.finish(1)
    assert [end.values for end in rendezvous.ended(2)] == [[1.0], [2.0]]


def test_a_call_that_waits_follows_one_that_failed():
    rendezvous = native.DeviceRendezvous()
    for call in range(2):
        for rank in range(2):
            rendezvous.start(rank, [1.0 + call], begun=True)
    rendezvous.finish(0, error="rank 3 is slow")
    assert [end.error for end in rendezvous.ended(2)] == ["rank 3 is slow"] * 2
    assert rendezvous.network(2)[1].sequence == 1
    rendezvous.finish(1)
    assert [end.values for end in rendezvous.ended(4)[2:]] == [[4.0]] * 2


def test_a_call_that_waits_has_a_step_that_grows():
    rendezvous = native.DeviceRendezvous()
    for step in (5, 5, 6):
        rendezvous.start(0, [1.0], devices=1, step=step, begun=True)
    rendezvous.finish(0)
    assert rendezvous.network(2)[1].sequence == 6
    rendezvous.finish(1)
    errors = {end.error[:15] for end in rendezvous.ended(3)}
    assert errors == {"", "step must grow "}


def test_a_cancellation_ends_the_open_call_and_not_those_that_wait():
    rendezvous = native.DeviceRendezvous()
    rendezvous.start(0, [1.0], begun=True)
    rendezvous.start(0, [2.0], begun=True)
    rendezvous.cancel("interrupted")
    assert rendezvous.ended(1)[0].error == "interrupted"
    # The other device starts the calls later: the first one has failed.
    rendezvous.start(1, [1.0], begun=True, step=0)
    assert "had failed before" in rendezvous.ended(2)[1].error
    rendezvous.start(1, [2.0], begun=True)
    assert rendezvous.network(1)[0].values == [4.0]


def test_a_close_ends_the_calls_that_wait():
    rendezvous = native.DeviceRendezvous()
    for _ in range(3):
        rendezvous.start(0, [1.0], begun=True)
    rendezvous.close("the program ends")
    ended = rendezvous.ended(3)
    assert [end.error for end in ended] == ["the program ends"] * 3
