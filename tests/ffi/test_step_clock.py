"""The step of a program, and the facts about the calls of the other ranks."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

State = native.StepClock.State

# The values in others_calls.h.
_INTERVALS = 8
_INTERVALS_PER_OUTLIER = 4
_MARGIN = 2


# ---- The step.


def waiting_clock():
    clock = native.StepClock()
    clock.call(0)
    clock.wait()
    return clock


def pass_in_vain(clock, call):
    """A step that passes the call, which a patient rank has waited for."""
    clock.call(0)
    if clock.is_patient(call):
        clock.wait()
    clock.pass_()


@pytest.mark.parametrize(
    "calls", [[0, 0], [0, 1, 0], [0, 1, 2, 1], [0, 1, 2, 0]], ids=str
)
def test_a_collective_that_is_called_again_begins_a_step(calls):
    clock = native.StepClock()
    clock.call(calls[0])
    clock.wait()
    clock.pass_()
    for call in calls[1:-1]:
        clock.call(call)
        assert clock.state() == State.PASSING, "one decision holds for the step"
    clock.call(calls[-1])
    assert clock.state() == State.IN_STEP


def test_a_collective_of_every_tenth_step_belongs_to_the_step_that_calls_it():
    clock = native.StepClock()
    for _ in range(10):
        clock.call(0)
        clock.call(1)
    clock.pass_()
    clock.call(2)
    assert clock.state() == State.PASSING
    clock.call(0)
    assert clock.state() == State.IN_STEP


def test_a_wait_ends_with_a_call_of_the_others_or_in_vain():
    clock = waiting_clock()
    assert clock.state() == State.WAITING
    clock.join()
    assert clock.state() == State.JOINED
    clock = waiting_clock()
    clock.pass_()
    assert clock.state() == State.PASSING


def test_ranks_wait_less_often_the_more_waits_were_in_vain():
    clock = native.StepClock()
    waits = []
    for call in range(200):
        clock.call(0)
        waits.append(clock.is_patient(call))
        if waits[-1]:
            clock.wait()
        clock.pass_()
    assert waits[0]
    assert 1 < sum(waits[:20]) < 10
    assert sum(waits[100:]) < 10


def test_brief_waits_in_vain_do_not_count():
    clock = native.StepClock()
    for _ in range(20):
        clock.call(0)
        clock.wait(patient=False)
        clock.pass_()
    clock.call(0)
    assert all(clock.is_patient(call) for call in range(64))


def test_several_waits_in_vain_of_one_step_count_once():
    clock = native.StepClock()
    for collective in range(10):
        clock.call(collective)
    clock.wait()
    for _ in range(10):
        clock.pass_()
    clock.call(0)
    # After one wait in vain the rank is patient in half of the calls.
    assert sum(clock.is_patient(call) for call in range(64)) == 32


def test_ranks_that_are_behind_wait_in_calls_of_the_same_numbers():
    # The one skips every second call; the other had fewer waits in vain.
    often, rarely = native.StepClock(), native.StepClock()
    for call in range(1, 33, 2):
        pass_in_vain(rarely, call)
    pass_in_vain(often, 0)
    often.call(0)
    rarely.call(0)
    both = [
        call
        for call in range(33, 600)
        if often.is_patient(call) and rarely.is_patient(call)
    ]
    assert {call % 2 for call in both} == {0, 1}


def test_a_rank_in_step_waits_again():
    clock = native.StepClock()
    pass_in_vain(clock, 0)
    clock.call(0)
    assert not clock.is_patient(5)
    # The step ends, and no call of it was over for the others.
    clock.call(0)
    assert clock.is_patient(5)


def test_a_rank_with_complete_calls_in_eight_steps_waits_for_the_next():
    clock = native.StepClock()
    waits = []
    for _ in range(10):
        clock.call(0)
        waits.append(clock.waits_for_next())
        clock.begin_complete()
    assert waits == [False] * 8 + [True] * 2
    clock.call(0)
    clock.call(0)
    assert not clock.waits_for_next(), "there was a step without"


def test_a_rank_that_has_joined_the_others_waits_with_them():
    clock = waiting_clock()
    assert not clock.waits_for_next()
    clock.join()
    assert clock.waits_for_next()
    clock.call(0)
    assert not clock.waits_for_next()


# ---- The calls of the others.


def test_the_newest_call_is_that_of_any_member():
    others = native.OthersCalls()
    assert others.newest() is None
    for now, call in [(1.0, 3), (2.0, 5), (3.0, 4)]:
        others.record(now, call)
    assert others.newest() == 5


def test_without_a_second_call_the_next_one_is_due_at_once():
    others = native.OthersCalls()
    others.record(5.0, 0)
    assert others.next_due() == 5.0


@hypothesis.given(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
def test_the_next_call_is_due_after_twice_the_longest_usual_pause(pauses):
    others = native.OthersCalls()
    now = 0.0
    others.record(now, 0)
    for call, pause in enumerate(pauses, start=1):
        now += pause
        others.record(now, call)
    recent = sorted(pauses[-_INTERVALS:])
    usual = recent[: len(recent) - len(recent) // _INTERVALS_PER_OUTLIER]
    assert others.next_due() == now + _MARGIN * usual[-1]


def test_the_time_of_a_wait_does_not_foretell_the_next_call():
    others = native.OthersCalls()
    for now, call in [(0.0, 0), (1.0, 1)]:
        others.record(now, call)
    others.record_wait()
    others.record(100.0, 2)
    assert others.next_due() == 102.0


# ---- The ranks that take part.


def test_a_rank_that_was_never_seen_is_not_absent():
    presence = native.Presence()
    presence.record_missed(1, presence.call())
    assert not presence.absent(1)


def test_a_rank_that_has_missed_a_call_is_absent_until_it_makes_one():
    presence = native.Presence()
    presence.record_call(1, presence.call())
    presence.record_missed(1, presence.call())
    assert presence.absent(1)
    presence.record_missed(1, presence.call())
    # Its data of the first call that it has missed comes late.
    presence.record_call(1, 2)
    assert presence.absent(1)
    presence.record_call(1, 3)
    assert not presence.absent(1)


def test_a_rank_that_waits_for_the_next_call_is_present_in_that():
    presence = native.Presence()
    presence.record_call(1, presence.call())
    presence.record_missed(1, presence.call())
    presence.record_wait(1, 1)
    presence.record_return(1)
    assert not presence.absent(1)
    presence.record_missed(1, presence.call())
    assert not presence.absent(1), "the call that it has waited for is not over"
    presence.record_missed(1, presence.call())
    assert presence.absent(1)


def test_a_rank_is_absent_from_calls_while_it_waits_in_another_collective():
    presence = native.Presence()
    presence.record_call(1, presence.call())
    presence.record_wait(1, 7)
    presence.record_return(1, collective=1)
    assert presence.absent(1)
    assert presence.waits_after(1) == 7


def test_a_process_serves_until_its_sums_stay_away():
    presence = native.Presence()
    assert presence.serves(1)
    presence.record_sums(1, presence.call())
    presence.record_missed_sums(1, presence.call())
    assert not presence.serves(1)
    presence.record_sums(1, presence.call())
    assert presence.serves(1)


def test_a_rank_drains_until_it_makes_a_call_or_the_drain_begins():
    presence = native.Presence()
    for end in (lambda: presence.end_wait(1), presence.end_drains):
        presence.record_drain(1)
        assert presence.drains(1)
        end()
        assert not presence.drains(1)


def test_a_rank_waits_in_one_call_until_it_makes_another_or_a_drain():
    presence = native.Presence()
    presence.record_drain(1)
    presence.record_wait(1, 7)
    assert presence.waits_after(1) == 7
    assert not presence.drains(1), "it has come to a call after the drain"
    presence.end_wait(1)
    assert presence.waits_after(1) is None
    presence.record_wait(1, 8)
    presence.record_drain(1)
    assert presence.waits_after(1) is None
    assert presence.drains(1)


# ---- The number of a drain.


def test_a_member_drains_until_it_makes_a_later_call():
    drain = native.DrainNumber()
    drain.record_waiting(1, 7)
    drain.record_called(1, 6)
    assert drain.least(1) == 7
    drain.record_called(1, 8)
    assert drain.least(1) is None


def test_the_least_number_of_a_member_only_rises():
    drain = native.DrainNumber()
    for least in (5, 9, 7):
        drain.record_waiting(1, least)
    assert drain.least(1) == 9


def test_a_drain_that_has_begun_here_is_told_by_no_member():
    drain = native.DrainNumber()
    drain.record_waiting(1, 9)
    drain.begin(9)
    # The datagrams of that drain may come again.
    drain.record_waiting(1, 9)
    drain.record_begun(9)
    assert (drain.least(1), drain.begun()) == (None, None)
    drain.record_begun(10)
    assert drain.begun() == 10


# ---- Skipped calls.


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
