"""The answers of wait, drop and defer to late data; times in seconds."""

import pytest
from call_stages import DEADLINE_S, Call

NEVER = 1e6


@pytest.mark.parametrize(
    ("mode", "facts"),
    [
        # waits, retains, loses late data, continues late, sums need all
        ("exact", (True, False, False, False, True)),
        ("agreed", (True, True, False, False, False)),
        ("bounded", (False, True, False, True, False)),
        ("lossy", (False, False, True, False, False)),
    ],
)
def test_each_mode_has_its_rules(mode, facts):
    call = Call(mode)
    assert facts == (
        call.waits,
        call.retains,
        call.loses_late,
        call.continues_late,
        call.sums_need_all,
    )


@pytest.mark.parametrize("mode", ["agreed", "bounded"])
def test_a_drain_waits_in_both_stages(mode):
    call = Call(mode, drain=True)
    assert call.waits
    assert call.first_deadline > NEVER
    assert call.call_deadline > NEVER


@pytest.mark.parametrize(
    ("mode", "first", "both"),
    [
        ("exact", None, None),
        ("agreed", DEADLINE_S / 2, None),
        ("bounded", DEADLINE_S / 2, DEADLINE_S),
        ("lossy", DEADLINE_S / 2, DEADLINE_S),
    ],
)
def test_deadlines_count_from_the_opening(mode, first, both):
    call = Call(mode, now=5.0)
    for deadline, expected in [
        (call.first_deadline, first),
        (call.call_deadline, both),
    ]:
        if expected is None:
            assert deadline > NEVER
        else:
            assert deadline == pytest.approx(5.0 + expected)


@pytest.mark.parametrize(
    ("mode", "first", "again"),
    [
        ("exact", "stale", "stale"),
        ("lossy", "stale", "stale"),
        ("bounded", "late", "duplicate"),
    ],
)
def test_data_of_a_call_that_is_over_is_late_once_or_stale(mode, first, again):
    call = Call(mode, sequence=3)
    assert call.over(0.0, 1, 2, 0, 7.0) == first
    assert call.over(0.0, 1, 2, 0, 7.0) == again


def test_what_is_late_twice_adds_up():
    call = Call("bounded", sequence=5)
    call.over(0.0, 1, 4, 0, 7.0)
    call.over(0.0, 2, 4, 0, 0.5)
    assert call.late_contribution(0) == 7.5


def test_data_for_another_shard_is_stale():
    assert Call("bounded", sequence=3).over(0.0, 1, 2, 4, 7.0) == "stale"
