"""A receiver's memory of datagram numbers, and its acknowledgements."""

import hypothesis
import hypothesis.strategies as st
import pytest

import optireduce_testing as native

# The value in received_numbers.h: this many of the newest numbers are remembered.
REMEMBERED = 4096
# The longest delay of an acknowledgement, in seconds.
DELAY_MAX_S = 0.0005
WINDOW = 64
DATAGRAM_BYTES = 1472


def make_numbers(window=WINDOW, datagram_bytes=DATAGRAM_BYTES):
    return native.ReceivedNumbers(window, datagram_bytes)


@pytest.mark.parametrize(
    "jump", [64, 4032, 4095, 4096, 4097, 4160, 8191, 8192, 100_000]
)
def test_no_number_that_a_jump_has_passed_over_counts_as_received(jump):
    numbers = make_numbers()
    first = 200
    for number in range(first):
        numbers.record(0.0, number)
    newest = first - 1 + jump
    numbers.record(0.0, newest)
    for number in range(newest):
        too_old = newest - number >= REMEMBERED
        assert numbers.contains(number) == (too_old or number < first), number


@hypothesis.given(
    st.lists(st.integers(0, 10_000), unique=True, min_size=1, max_size=300)
)
def test_a_number_is_contained_after_it_was_recorded_and_never_before(received):
    numbers = make_numbers()
    largest, count = -1, 0
    for number in received:
        # A number far behind the largest is too old to decide.
        too_old = largest - number >= REMEMBERED
        assert numbers.contains(number) == too_old
        if not too_old:
            numbers.record(0.0, number)
            count += 1
            assert numbers.contains(number)
        largest = max(largest, number)
        assert numbers.expected == largest + 1
        assert numbers.recorded == count


def test_the_oldest_number_that_is_remembered_may_still_come():
    numbers = make_numbers()
    numbers.record(0.0, REMEMBERED - 1)
    assert not numbers.contains(0)
    numbers.record(0.0, 0)
    assert numbers.contains(0)


@pytest.mark.parametrize(
    ("window", "datagram_bytes", "every"),
    [
        (1, 1472, 1),
        (4, 1472, 2),
        (8, 1472, 8),
        (40, 1472, 10),
        (1000, 1472, 16),
        # Sixteen datagrams of this length are more than many windows.
        (230, 8972, 2),
        (11, 65_504, 2),
        (1, 65_504, 1),
    ],
)
def test_a_part_of_a_window_has_an_acknowledgement_at_once(
    window, datagram_bytes, every
):
    numbers = make_numbers(window, datagram_bytes)
    assert numbers.acknowledge_every == every
    for number in range(every):
        assert not numbers.acknowledgement_due(0.0)
        numbers.record(0.0, number)
    assert numbers.acknowledgement_due(0.0)


def test_a_single_number_is_acknowledged_after_the_longest_delay():
    numbers = make_numbers()
    numbers.record(1.0, 7)
    assert numbers.timeout == pytest.approx(1.0 + DELAY_MAX_S)
    assert not numbers.acknowledgement_due(1.0)
    assert numbers.acknowledgement_due(1.0 + DELAY_MAX_S)
    assert numbers.acknowledge(1.25) == (7, [7], [], 0.25)
    assert not numbers.acknowledgement_due(10.0)


def test_a_number_that_wants_no_acknowledgement_is_in_the_next_one():
    numbers = make_numbers()
    numbers.record(0.0, 3, wanted=False)
    assert not numbers.acknowledgement_due(10.0)
    numbers.record(10.0, 4, at_once=True)
    assert numbers.acknowledgement_due(10.0)
    assert numbers.acknowledge(10.0) == (4, [3, 4], [], 0.0)


def test_refused_numbers_are_acknowledged_as_refused():
    numbers = make_numbers()
    for number in range(40):
        numbers.record(0.0, number, refused=number % 3 == 0)
    largest, contained, refused, _ = numbers.acknowledge(0.0)
    assert largest == 39
    assert contained == list(range(40))
    assert refused == list(range(0, 40, 3))


def test_an_acknowledgement_repeats_the_numbers_of_lost_ones():
    numbers = make_numbers()
    for number in range(0, 200, 2):
        numbers.record(0.0, number, at_once=True)
        numbers.acknowledge(0.0)
    numbers.record(0.0, 200)
    assert numbers.acknowledge(0.0, newest=200)[1] == list(range(2, 201, 2))


def test_a_report_that_is_due_leaves_at_once():
    numbers = make_numbers()
    numbers.record(0.0, 0)
    numbers.acknowledge(0.0)
    numbers.acknowledge_at_once(2.0)
    assert numbers.timeout == 2.0
    assert numbers.acknowledgement_due(2.0)
