"""The order in which the members of a collective serve each other."""

import pytest

import optireduce_testing as native


@pytest.mark.parametrize("world_size", range(1, 65))
def test_every_member_serves_every_other_once(world_size):
    for member in range(world_size):
        order = native.tar_send_order(world_size, member)
        assert sorted([member, *order]) == list(range(world_size))


@pytest.mark.parametrize("world_size", range(2, 65))
def test_in_each_step_every_member_hears_from_one_other(world_size):
    orders = [native.tar_send_order(world_size, m) for m in range(world_size)]
    for receivers in zip(*orders, strict=True):
        assert sorted(receivers) == list(range(world_size))
