"""Paths on which long datagrams do not arrive and short ones do; times in seconds."""

import hypothesis
from hypothesis import strategies as st

import optireduce_testing as native

# The values in black_hole_detector.cc.
EVERY_PATH = 548
LOSSES = 32

LONG, SHORT = 1472, 1000
PATIENCE = 3.0


def lose(detector, times=LOSSES, *, length=LONG, since=0.0, until=PATIENCE):
    for i in range(times):
        detector.lost(since + (until - since) * i / max(times - 1, 1), length)


def black_hole():
    """Long datagrams are lost for PATIENCE, short ones are not."""
    detector = native.BlackHoleDetector()
    detector.lost(0.0, LONG)
    detector.delivered(SHORT)
    lose(detector, LOSSES - 1)
    return detector


def test_a_path_that_delivers_nothing_is_no_black_hole():
    detector = native.BlackHoleDetector()
    lose(detector, 10 * LOSSES)
    assert detector.find(PATIENCE) is None
    detector.sent(4.0, LONG, 1.0)
    assert detector.trials == 0
    assert not detector.blocks(4.5, LONG)


def test_both_lengths_are_named():
    assert black_hole().find(PATIENCE) == (LONG, SHORT)


def test_it_takes_many_losses():
    detector = native.BlackHoleDetector()
    detector.lost(0.0, LONG)
    detector.delivered(SHORT)
    lose(detector, LOSSES - 2)
    assert detector.find(PATIENCE) is None
    detector.lost(PATIENCE, LONG)
    assert detector.find(PATIENCE) == (LONG, SHORT)


def test_it_takes_patience():
    assert black_hole().find(PATIENCE + 0.1) is None


def test_a_long_datagram_that_arrives_ends_it():
    detector = black_hole()
    detector.delivered(LONG)
    assert detector.find(PATIENCE) is None
    assert not detector.blocks(PATIENCE, LONG)


@hypothesis.given(st.integers(1, EVERY_PATH))
def test_datagrams_that_every_path_takes_are_not_lost_for_their_length(length):
    detector = native.BlackHoleDetector()
    detector.lost(0.0, length)
    detector.delivered(1)
    lose(detector, 10 * LOSSES, length=length)
    assert detector.find(PATIENCE) is None


def test_the_shortest_lost_one_counts():
    detector = black_hole()
    detector.lost(PATIENCE, LONG - 100)
    assert detector.find(PATIENCE) == (LONG - 100, SHORT)
    assert detector.blocks(PATIENCE, LONG - 100) is False, "no trial was made yet"


def test_a_path_may_become_narrower():
    detector = black_hole()
    later = PATIENCE + 1
    detector.lost(later, SHORT)
    detector.delivered(SHORT - 100)
    lose(detector, length=SHORT, since=later, until=later + PATIENCE)
    assert detector.find(PATIENCE) == (SHORT, SHORT - 100)


def test_long_datagrams_wait_for_the_next_trial_and_short_ones_do_not():
    detector = black_hole()
    assert not detector.blocks(4.0, LONG)
    detector.sent(4.0, LONG, 1.0)
    assert detector.trials == 1
    assert detector.blocks(4.5, LONG)
    assert not detector.blocks(4.5, SHORT)
    assert detector.timeout == 5.0
    detector.handle_timeout(5.0)
    assert not detector.blocks(5.0, LONG)


def test_without_a_datagram_that_waits_nothing_is_due():
    detector = black_hole()
    detector.sent(4.0, LONG, 1.0)
    assert detector.timeout > 1e6


def test_short_datagrams_are_no_trials():
    detector = black_hole()
    detector.sent(4.0, SHORT, 1.0)
    assert detector.trials == 0
