"""Calls in two steps: the memory between their begin and their end."""

import pytest

import optireduce_testing as native


def test_the_leaves_are_copied_and_the_end_gets_the_result():
    calls = native.BegunCalls()
    number = calls.begin([[1.0, 2.0], [3.0]])
    assert calls.contribution(0) == [1.0, 2.0, 3.0]
    assert (calls.under_way, calls.open, calls.memory_bytes) == (1, 1, 12)
    calls.finish(0, added=10.0)
    assert (calls.under_way, calls.open, calls.memory_bytes) == (0, 1, 12)
    calls.end(number, elements=3)
    assert (calls.open, calls.memory_bytes) == (0, 0)
    (end,) = calls.ended
    assert (end.error, end.values) == ("", [11.0, 12.0, 13.0])


def test_an_end_before_the_result_gets_it_later():
    calls = native.BegunCalls()
    calls.end(calls.begin([[1.0]]), elements=1)
    assert (calls.under_way, calls.open, len(calls.ended)) == (1, 1, 0)
    calls.finish(0, added=1.0)
    assert (calls.under_way, calls.open) == (0, 0)
    assert calls.ended[0].values == [2.0]


def test_an_ended_call_makes_room_for_another():
    calls = native.BegunCalls()
    for i in range(3 * native.BegunCalls.open_max):
        calls.end(calls.begin([[1.0]]), elements=1)
        calls.finish(i)
    assert (len(calls.ended), calls.dropped) == (3 * native.BegunCalls.open_max, 0)


@pytest.mark.parametrize("ended_first", [False, True])
def test_an_error_of_the_call_is_that_of_its_end(*, ended_first):
    calls = native.BegunCalls()
    number = calls.begin([[1.0]])
    if ended_first:
        calls.end(number, elements=1)
    calls.finish(0, error="rank 3 has left")
    if not ended_first:
        calls.end(number, elements=1)
    assert [end.error for end in calls.ended] == ["rank 3 has left"]
    assert (calls.open, calls.memory_bytes) == (0, 0)


@pytest.mark.parametrize("finished", [False, True])
def test_a_call_is_ended_once(*, finished):
    calls = native.BegunCalls()
    number = calls.begin([[1.0]])
    if finished:
        calls.finish(0)
    calls.end(number, elements=1)
    with pytest.raises(RuntimeError, match="was ended before"):
        calls.end(number, elements=1)
    if not finished:
        calls.finish(0)
    assert len(calls.ended) == 1


def test_devices_have_calls_of_their_own():
    calls = native.BegunCalls()
    assert [calls.begin([[1.0 + rank]], rank=rank) for rank in range(2)] == [1, 1]
    for rank in (1, 0):
        calls.finish(rank)
        calls.end(1, elements=1, rank=rank)
    assert [end.values for end in calls.ended] == [[2.0], [1.0]]
    with pytest.raises(RuntimeError, match="no call of this device"):
        calls.end(1, elements=1, rank=2)


@pytest.mark.parametrize("number", [0, 2])
def test_the_number_of_no_call_is_an_error(number):
    calls = native.BegunCalls()
    calls.begin([[1.0]])
    with pytest.raises(RuntimeError, match="no call of this device"):
        calls.end(number, elements=1)


def test_results_of_another_size_are_refused_and_the_call_stays():
    calls = native.BegunCalls()
    number = calls.begin([[1.0, 2.0]])
    calls.finish(0)
    with pytest.raises(ValueError, match="12 bytes, the call has 8"):
        calls.end(number, elements=3)
    calls.end(number, elements=2)
    assert calls.ended[0].values == [1.0, 2.0]


def test_the_oldest_result_of_too_many_is_dropped():
    calls = native.BegunCalls()
    most = native.BegunCalls.open_max
    for i in range(most + 3):
        calls.begin([[float(i)]])
        calls.finish(i)
    assert (calls.open, calls.dropped, calls.memory_bytes) == (most, 3, 4 * most)
    with pytest.raises(RuntimeError, match="handles_dropped"):
        calls.end(3, elements=1)
    calls.end(4, elements=1)
    assert calls.ended[0].values == [3.0]


@pytest.mark.parametrize("waits", [False, True])
def test_a_call_that_may_still_be_ended_is_not_dropped(*, waits):
    calls = native.BegunCalls()
    most = native.BegunCalls.open_max
    for i in range(most):
        calls.begin([[float(i)]])
    if waits:
        calls.end(1, elements=1)
    with pytest.raises(RuntimeError, match=f"{most} calls of 'x' are under way"):
        calls.begin([[0.0]])
    calls.finish(0)
    assert calls.begin([[0.0]]) == most + 1
    assert calls.dropped == (0 if waits else 1)
