"""A lossy call that all other members are past ends at once."""

from session_parts import ANNOUNCEMENT, Parts


def test_a_call_ends_when_all_others_are_past_it():
    parts = Parts()
    x = parts.collective("lossy")
    parts.submit(1.0, (x, 0))
    for rank in (1, 2):
        assert parts.note_attendance(1.0, (x, 1), rank) == []
    assert parts.note_attendance(1.1, (x, 2), 1) == []
    assert parts.note_attendance(1.1, (x, 2), 2) == [(x, 0)]


def test_a_call_that_waits_for_its_members_is_not_passed():
    parts = Parts(2)
    x = parts.collective("exact")
    parts.submit(1.0, (x, 0))
    for sequence in (1, 2, 3):
        assert parts.note_attendance(1.0, (x, sequence), 1) == []


def test_a_peer_that_is_gone_is_not_waited_for():
    parts = Parts()
    x = parts.collective("lossy")
    parts.submit(1.0, (x, 0))
    parts.mark_left(2)
    parts.note_attendance(1.0, (x, 1), 1)
    assert parts.note_attendance(1.1, (x, 2), 1) == [(x, 0)]


def test_a_call_ends_when_all_others_say_that_they_are_past_it():
    parts = Parts()
    x = parts.collective("lossy")
    parts.submit(1.0, (x, 3))
    assert parts.note_attendance(1.1, (x, 3), 1, past=True) == []
    assert parts.note_attendance(1.1, (x, 2), 2, past=True) == []
    assert parts.note_attendance(1.2, (x, 3), 2, past=True) == [(x, 3)]


def test_one_answer_is_queued_for_a_peer_however_many_calls_it_asks_for():
    parts = Parts()
    x, y = (parts.collective("lossy", name=name) for name in "xy")
    for sequence in range(9):
        for collective in (x, y):
            parts.answer_past((collective, sequence), 1)
    assert parts.control(1) == [(ANNOUNCEMENT, (x, 8)), (ANNOUNCEMENT, (y, 8))]
    assert parts.control(2) == []


def test_data_of_a_call_that_waits_for_its_members_has_no_answer():
    parts = Parts()
    x = parts.collective("exact")
    parts.answer_past((x, 0), 1)
    assert parts.control(1) == []
