"""The calls that are open at a rank."""

from session_parts import Parts


def test_the_open_calls_of_a_collective_are_in_the_order_of_their_numbers():
    parts = Parts()
    x, y = parts.collective("bounded"), parts.collective("bounded", name="y")
    for call in [(x, 5), (y, 2), (x, 1), (x, 3)]:
        parts.open(1.0, call)
    assert parts.calls(x) == [(x, 1), (x, 3), (x, 5)]
    assert parts.calls(y) == [(y, 2)]
    assert parts.contains((x, 3))
    assert not parts.contains((y, 3))


def test_a_member_has_called_what_was_heard_of_it():
    parts = Parts()
    x = parts.collective("bounded")
    assert not parts.has_called((x, 0), False, 1)
    parts.open(1.0, (x, 0))
    parts.hear(1.0, 1, (x, 0))
    assert parts.has_called((x, 0), False, 1)
    assert not parts.has_called((x, 0), False, 2)
    assert not parts.has_called((x, 1), False, 1)


def test_a_drain_that_was_heard_of_may_still_wait():
    parts = Parts()
    x = parts.collective("bounded")
    parts.open(1.0, (x, 0))
    parts.hear(1.0, 1, (x, 0))
    assert not parts.has_called((x, 0), True, 1)
