"""What follows from loss: the Hadamard transform, skipped calls, help."""

import hypothesis
import pytest
from hypothesis import strategies as st

from jax_optireduce import _testing

Action = _testing.SafeguardAction
losses = st.floats(0, 1) | st.sampled_from([0.0, 0.01, 0.02, 0.1, 1.0])


class TestHadamardSwitch:
    """On above 2 %, off after 100 calls below 1 %."""

    def test_one_call_above_two_per_cent_turns_it_on(self):
        switch = _testing.HadamardSwitch()
        switch.end_call(0.02)
        assert not switch.on()
        switch.end_call(0.021)
        assert switch.on()

    def test_a_hundred_calls_below_one_per_cent_turn_it_off(self):
        switch = _testing.HadamardSwitch()
        switch.end_call(0.5)
        for loss in [0.0] * 99 + [0.01] + [0.0099] * 99:
            switch.end_call(loss)
            assert switch.on()
        switch.end_call(0.0)
        assert not switch.on()

    @hypothesis.given(st.lists(losses | st.just(0.0), max_size=300))
    def test_it_follows_the_rule_and_nothing_else(self, history):
        switch = _testing.HadamardSwitch()
        for i, loss in enumerate(history):
            before = switch.on()
            switch.end_call(loss)
            last = history[max(0, i - 99) : i + 1]
            if loss > 0.02:
                assert switch.on()
            elif len(last) == 100 and max(last) < 0.01:
                assert not switch.on()
            else:
                assert switch.on() == before


class TestSkipPolicy:
    """3 skipped of 20 calls, 5 of 20, 50 in a row."""

    def test_a_call_above_the_limit_is_skipped(self):
        policy = _testing.SkipPolicy()
        assert policy.end_call(0.1) == (False, Action.NONE)
        assert policy.end_call(0.11) == (True, Action.NONE)
        assert _testing.SkipPolicy(0.5).end_call(0.5) == (False, Action.NONE)
        assert _testing.SkipPolicy(0.5).end_call(0.51) == (True, Action.NONE)

    def test_the_third_skip_recalibrates_once_and_the_fifth_is_reliable(self):
        policy = _testing.SkipPolicy()
        actions = [policy.end_call(1.0)[1] for _ in range(5)]
        assert actions == [
            Action.NONE,
            Action.NONE,
            Action.RECALIBRATE,
            Action.NONE,
            Action.RELIABLE,
        ]

    def test_reliable_calls_end_when_the_window_has_passed(self):
        policy = _testing.SkipPolicy()
        for _ in range(5):
            policy.end_call(1.0)
        actions = [policy.end_call(0.0)[1] for _ in range(20)]
        assert actions == [Action.RELIABLE] * 15 + [Action.NONE] * 5

    def test_skips_far_apart_have_no_consequence(self):
        policy = _testing.SkipPolicy()
        for _ in range(20):
            assert policy.end_call(1.0) == (True, Action.NONE)
            for _ in range(9):
                assert policy.end_call(0.0) == (False, Action.NONE)

    def test_fifty_in_a_row_call_the_user_and_so_do_fifty_more(self):
        policy = _testing.SkipPolicy()
        actions = [policy.end_call(1.0)[1] for _ in range(100)]
        called = [
            i for i, action in enumerate(actions, 1) if action == Action.CALL_USER
        ]
        assert called == [50, 100]

    @hypothesis.given(st.lists(losses, max_size=150), st.floats(0, 1))
    def test_the_actions_follow_from_the_last_twenty_calls(self, history, limit):
        policy = _testing.SkipPolicy(limit)
        skips = [missing > limit for missing in history]
        for i, missing in enumerate(history):
            skip, action = policy.end_call(missing)
            assert skip == skips[i]
            now = sum(skips[max(0, i - 19) : i + 1])
            before = sum(skips[max(0, i - 20) : i])
            if i >= 49 and all(skips[i - 49 : i + 1]):
                assert action in (Action.CALL_USER, Action.RELIABLE)
            elif now >= 5:
                assert action == Action.RELIABLE
            elif now >= 3 and before < 3:
                assert action == Action.RECALIBRATE
            else:
                assert action == Action.NONE


@pytest.mark.parametrize("loss", [-0.1, 1.1, float("nan")])
def test_a_loss_that_is_no_fraction_is_a_broken_invariant(loss):
    for decider in (_testing.HadamardSwitch(), _testing.SkipPolicy()):
        with pytest.raises(RuntimeError, match="broken invariant"):
            decider.end_call(loss)
