"""Data for calls that the program has not made: accepted, or refused."""

import pytest
from session_parts import Parts


def test_calls_ahead_of_the_program_are_limited_by_the_lag():
    parts = Parts(max_lag=2)
    x = parts.collective("exact")
    for sequence in range(2):
        assert parts.decide(x) == "open"
        parts.open(0.0, (x, sequence))
    assert parts.decide(x) == "refuse"
    parts.submit(0.0, (x, 0))
    assert parts.decide(x) == "open"


def test_each_collective_has_a_limit_of_its_own():
    parts = Parts(max_lag=1)
    x, y = parts.collective("exact"), parts.collective("exact", name="y")
    parts.open(0.0, (x, 0))
    assert parts.decide(x) == "refuse"
    assert parts.decide(y) == "open"


def test_memory_for_early_data_is_limited():
    # Contributions of two peers to a shard of four bytes.
    for bytes_max, has_room in ((8, True), (7, False)):
        parts = Parts(early_bytes_max=bytes_max)
        assert parts.has_room_for(parts.collective("exact")) == has_room


def test_a_call_that_was_made_and_is_not_open_is_over():
    parts = Parts()
    x = parts.collective("exact")
    parts.submit(0.0, (x, 3))
    assert parts.is_over((x, 2))
    assert not parts.is_over((x, 3))
    assert not parts.is_over((x, 4))


@pytest.mark.parametrize(
    ("mode", "abandoned"),
    [("exact", False), ("agreed", True), ("bounded", True), ("lossy", False)],
)
def test_a_rank_that_leaves_abandons_calls_whose_late_data_is_retained(mode, abandoned):
    parts = Parts()
    x = parts.collective(mode)
    assert not parts.is_abandoned(x)
    parts.leave()
    assert parts.is_abandoned(x) == abandoned
