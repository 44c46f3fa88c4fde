"""A call as the local program sees it: made or not, under way, or over."""

import pytest

import optireduce_testing as native

_QUESTIONS = (
    "uncalled",
    "abandoned",
    "submitted",
    "running",
    "finished",
    "merged",
    "over",
)


def answers(state):
    return {question for question in _QUESTIONS if getattr(state, question)}


def after(*steps):
    state = native.ProgramState()
    for step in steps:
        if step == "submit":
            state.submit(1.0)
        else:
            getattr(state, step)()
    return state


@pytest.mark.parametrize(
    ("steps", "true"),
    [
        ([], {"uncalled"}),
        (["abandon"], {"uncalled", "abandoned"}),
        (["submit"], {"submitted", "running"}),
        (["submit", "finish"], {"submitted", "finished", "over"}),
        (["merge"], {"merged", "over"}),
        (["abandon", "merge"], {"merged", "over"}),
    ],
)
def test_each_phase_has_its_answers(steps, true):
    assert answers(after(*steps)) == true


def test_the_time_for_which_a_call_was_held_counts_from_the_program():
    state = native.ProgramState()
    state.submit(10.0, held=2.5, token=7, skipped=3)
    assert (state.submitted_at, state.called_at) == (10.0, 7.5)
    assert (state.token, state.skipped) == (7, 3)
