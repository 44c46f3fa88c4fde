"""Schedules are proved, and the proof detects broken ones."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native


@st.composite
def tar(draw, world_size_min=2):
    world_size = draw(st.integers(world_size_min, 12), label="world_size")
    incast = draw(st.integers(1, world_size - 1), label="incast")
    return world_size, incast, native.tar_rounds(world_size, incast)


@st.composite
def position(draw, rounds):
    number = draw(st.integers(0, len(rounds) - 1), label="round")
    return number, draw(st.integers(0, len(rounds[number]) - 1), label="transfer")


def text_of(number: int, transfer: tuple[int, int, int, str]) -> str:
    sender, receiver, shard, op = transfer
    return (
        f"round {number}, transfer from {sender} to {receiver}, shard {shard}, {op}: "
    )


@pytest.mark.parametrize("world_size", range(1, 65))
def test_tar_is_right_for_every_incast(world_size):
    for incast in range(1, max(world_size, 2)):
        assert native.verify_tar(world_size, incast) == ""


@pytest.mark.parametrize("incast", [0, 7, 8, 1000])
def test_incast_is_limited_to_what_a_world_has(incast):
    limited = min(max(incast, 1), 7)
    assert native.tar_rounds(8, incast) == native.tar_rounds(8, limited)


@hypothesis.given(tar())
def test_every_transfer_takes_the_documented_step_in_the_documented_round(schedule):
    world_size, incast, rounds = schedule
    per_stage = -(-(world_size - 1) // incast)
    assert len(rounds) == 2 * per_stage
    for number, transfers in enumerate(rounds):
        assert len(set(transfers)) == len(transfers)
        for sender, receiver, shard, op in transfers:
            assert op == ("reduce" if number < per_stage else "copy")
            assert shard == (receiver if op == "reduce" else sender)
            step = (sender - receiver) % world_size
            assert (step - 1) // incast == number % per_stage


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 64])
def test_send_order_is_that_of_the_schedule(world_size):
    rounds = native.tar_rounds(world_size, 1)
    for member in range(world_size):
        served = [t[1] for transfers in rounds for t in transfers if t[0] == member]
        order = native.tar_send_order(world_size, member)
        assert served == order + order


def test_a_world_of_one_has_nothing_to_do():
    assert native.tar_rounds(1, 1) == []
    assert native.verify_schedule(1, 1, []) == ""


@hypothesis.given(tar(), st.data())
def test_a_missing_transfer_is_noticed(schedule, data):
    world_size, incast, rounds = schedule
    number, at = data.draw(position(rounds))
    sender, receiver, shard, op = rounds[number].pop(at)
    message = native.verify_schedule(world_size, incast, rounds)
    if op == "copy":
        assert message == (
            f"shard {shard}: rank {receiver} never gets it after it was reduced."
        )
    else:  # Its owner has no reduced shard to copy.
        assert f"shard {shard}, copy: the sender does not have the reduced" in message
        assert f"from {receiver} " in message
        assert sender != receiver


@hypothesis.given(tar(), st.data())
def test_a_contribution_that_counts_twice_is_named(schedule, data):
    world_size, incast, rounds = schedule
    number, at = data.draw(
        position([r for r in rounds if r[0][3] == "reduce"]),
    )
    again = rounds[number][at]
    rounds.append([again])
    message = native.verify_schedule(world_size, incast, rounds)
    assert message.startswith(text_of(len(rounds) - 1, again))
    assert "would count twice" in message


@hypothesis.given(tar(), st.data())
def test_a_wrong_transfer_is_named(schedule, data):
    world_size, incast, rounds = schedule
    number, at = data.draw(position(rounds))
    sender, receiver, shard, op = rounds[number][at]
    wrong, reason = data.draw(
        st.sampled_from(
            [
                ((sender, sender, shard, op), "must not send to itself"),
                ((sender, world_size, shard, op), "must be below the world size"),
                ((world_size, receiver, shard, op), "must be below the world size"),
                ((sender, receiver, world_size, op), "must be below the world size"),
                ((sender, receiver, sender, "reduce"), "the owner of its shard"),
            ]
        ),
        label="wrong",
    )
    rounds[number].insert(at, wrong)
    message = native.verify_schedule(world_size, incast, rounds)
    assert message.startswith(text_of(number, wrong))
    assert reason in message


@hypothesis.given(tar(world_size_min=3), st.data())
def test_more_senders_than_the_incast_are_noticed(schedule, data):
    world_size, _, _ = schedule
    joined = data.draw(st.integers(2, world_size - 1), label="joined")
    allowed = data.draw(st.integers(1, joined - 1), label="allowed")
    rounds = native.tar_rounds(world_size, joined)
    message = native.verify_schedule(world_size, allowed, rounds)
    assert message.startswith("round 0, transfer from ")
    assert f"more senders than the incast, {allowed}" in message


def test_a_shard_copied_in_the_round_that_reduces_it_is_refused():
    rounds = native.tar_rounds(3, 2)
    joined = [rounds[0] + rounds[1]]
    message = native.verify_schedule(3, 2, joined)
    assert "does not have the reduced shard when the round begins" in message


def test_a_reduced_shard_may_be_passed_on():
    reduce = native.tar_rounds(3, 2)[0]
    passed_on = [
        [(0, 1, 0, "copy"), (1, 2, 1, "copy"), (2, 0, 2, "copy")],
        [(1, 2, 0, "copy"), (2, 0, 1, "copy"), (0, 1, 2, "copy")],
    ]
    assert native.verify_schedule(3, 2, [reduce, *passed_on]) == ""
