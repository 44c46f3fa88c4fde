"""The deadlines of the stages, fixed or learned; times in seconds."""

import pytest

import optireduce_testing as native

MEMBERS = 3
# Deadline of both stages together.
DEADLINE_S = 1.0
# The value in deadline_controller.cc.
CALIBRATION_CALLS = 20


def timing(mode, **options):
    collective = native.Collective(
        "x",
        mode=mode,
        members=list(range(MEMBERS)),
        elements=300,
        description="x",
        fingerprint=1,
        deadline_s=DEADLINE_S,
        wire_format="float32",
    )
    return native.CallTiming(collective, **options)


def learn(of, first_s, second_s, calls=2 * CALIBRATION_CALLS):
    """Calls in which all data of the stages takes these times."""
    for _ in range(calls):
        of.open()
        for source in range(1, MEMBERS):
            of.arrived(0, source, first_s)
            of.arrived(1, source, second_s)
    of.open()


@pytest.mark.parametrize("mode", ["agreed", "bounded", "lossy"])
def test_without_a_budget_the_deadlines_are_those_of_the_calls(mode):
    of = timing(mode)
    learn(of, 0.01, 0.02)
    assert of.reduce_scatter_deadline == DEADLINE_S / 2
    assert of.call_deadline == DEADLINE_S
    assert of.deadline_needed == 0


def test_while_a_deadline_is_learned_it_is_the_bound():
    of = timing("bounded", late_budget=0.01)
    learn(of, 0.01, 0.02, calls=CALIBRATION_CALLS - 1)
    assert of.reduce_scatter_deadline == DEADLINE_S / 2
    assert of.call_deadline == DEADLINE_S


def test_bounded_calls_learn_both_stages():
    of = timing("bounded", late_budget=0.01)
    learn(of, 0.01, 0.02)
    assert 0.01 <= of.reduce_scatter_deadline < 0.015
    # The time counts from the opening of the call.
    assert 0.02 <= of.call_deadline < 0.03


def test_agreed_calls_learn_the_first_stage_and_wait_in_the_second():
    of = timing("agreed", late_budget=0.01)
    learn(of, 0.01, 0.02)
    first = of.reduce_scatter_deadline
    assert 0.01 <= first < 0.015
    assert of.call_deadline == pytest.approx(first + DEADLINE_S / 2)


def test_a_call_ends_no_earlier_than_its_first_stage():
    of = timing("bounded", late_budget=0.01)
    learn(of, 0.2, 0.01)
    assert of.call_deadline >= of.reduce_scatter_deadline


def test_a_bound_that_is_too_short_is_told():
    of = timing("bounded", late_budget=0.01)
    learn(of, 0.4, 0.6)
    assert of.deadline_needed < DEADLINE_S
    of = timing("bounded", late_budget=0.01)
    learn(of, 2.0, 3.0)
    assert of.call_deadline == DEADLINE_S
    assert of.deadline_needed > DEADLINE_S


def test_lossy_calls_retransmit_until_the_time_of_whole_calls_is_known():
    of = timing("lossy", late_budget=0.01)
    assert of.calibrating
    for _ in range(2 * CALIBRATION_CALLS):
        for stage in range(2):
            of.ended(stage, 0.01)
    assert not of.calibrating
    assert not timing("bounded", late_budget=0.01).calibrating


def test_samples_of_the_stages_take_turns():
    of = timing("lossy", late_budget=0.01)
    for _ in range(2 * CALIBRATION_CALLS):
        of.ended(0, 0.01)
        of.ended(1, 0.04)
    first, second = of.sample_for(0, 0), of.sample_for(0, 1)
    assert first != second
    assert [of.sample_for(1, segment) for segment in (0, 1)] == [second, first]
    assert of.sample_for(2, 2) == first
