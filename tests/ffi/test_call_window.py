"""The window of calls: data sent in it is accepted exactly once."""

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

NEW = native.CallHistory.Receipt.NEW
SEGMENTS = 3


class Peers:
    """A sender and a receiver of one stage, with an arbitrary network.

    The receiver either has ended each call before its data arrives, or remembers the
    data that came in time: both end in its history.
    """

    def __init__(self, max_lag: int) -> None:
        self.max_lag = max_lag
        self.window = native.SendWindow(max_lag)
        self.history = native.CallHistory(max_lag)
        self.undelivered: dict[int, set[int]] = {}
        self.network: list[tuple[int, int]] = []
        self.taken: list[tuple[int, int]] = []

    def begin(self, call: int) -> bool:
        if not self.window.may_begin(call):
            return False
        self.window.begin(call)
        self.undelivered[call] = set(range(SEGMENTS))
        return True

    def send(self, call: int, segment: int) -> None:
        if segment in self.undelivered.get(call, ()):
            self.network.append((call, segment))

    def deliver(self, position: int, *, keep: bool, acknowledge: bool) -> None:
        if not self.network:
            return
        position %= len(self.network)
        call, segment = self.network[position]
        if not keep:
            del self.network[position]
        if self.history.take(call, segment, SEGMENTS) == NEW:
            self.taken.append((call, segment))
        # A late acknowledgement is like a lost one: the data is retransmitted.
        if acknowledge and segment in self.undelivered[call]:
            self.undelivered[call].discard(segment)
            if not self.undelivered[call]:
                self.window.deliver(call)


actions = st.one_of(
    st.tuples(st.just("begin"), st.integers(0, 12)),
    st.tuples(st.just("send"), st.integers(0, 12), st.integers(0, SEGMENTS - 1)),
    st.tuples(st.just("deliver"), st.integers(0, 50), st.booleans(), st.booleans()),
)


@hypothesis.given(st.integers(1, 3), st.lists(actions, max_size=200))
def test_nothing_is_taken_twice_and_nothing_that_arrived_is_refused(max_lag, plan):
    peers = Peers(max_lag)
    for kind, *what in plan:
        if kind == "begin":
            peers.begin(what[0])
        elif kind == "send":
            peers.send(*what)
        else:
            peers.deliver(what[0], keep=what[1], acknowledge=what[2])
    assert len(peers.taken) == len(set(peers.taken))
    # Acknowledged data was accepted: a refusal as stale would have lost it.
    for call, left in peers.undelivered.items():
        for segment in set(range(SEGMENTS)) - left:
            assert (call, segment) in peers.taken


@pytest.mark.parametrize("max_lag", [1, 2, 3])
def test_a_call_waits_for_one_that_is_more_than_max_lag_older(max_lag):
    peers = Peers(max_lag)
    for call in range(max_lag + 1):
        assert peers.begin(call)
    assert not peers.begin(max_lag + 1)
    peers.window.deliver(1)
    assert not peers.begin(max_lag + 1), "the oldest is not delivered yet"
    peers.window.deliver(0)
    assert peers.begin(max_lag + 1)


@hypothesis.given(
    st.integers(1, 3),
    st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60),
    st.integers(0, 14),
)
def test_lag_is_of_calls_that_are_max_lag_older_and_not_delivered(max_lag, plan, call):
    window = native.SendWindow(max_lag)
    begun, delivered = set(), set()
    for deliver, number in plan:
        if deliver and number in begun:
            window.deliver(number)
            delivered.add(number)
        elif not deliver and window.may_begin(number):
            window.begin(number)
            begun.add(number)
    # Newer calls may have begun, and are not counted.
    older = sorted((number for number in begun if number < call), reverse=True)
    assert window.lags(call) == bool(set(older[max_lag - 1 :]) - delivered)


def test_what_came_in_time_is_not_taken_again():
    history = native.CallHistory(1)
    history.remember(5, [True, False, True])
    assert history.take(5, 0, SEGMENTS) == native.CallHistory.Receipt.DUPLICATE
    assert history.take(5, 1, SEGMENTS) == NEW


def test_a_call_older_than_the_window_is_stale():
    history = native.CallHistory(1)
    for call in (5, 6, 7):
        history.take(call, 0, SEGMENTS)
    assert history.take(5, 1, SEGMENTS) == native.CallHistory.Receipt.STALE
    assert history.take(6, 1, SEGMENTS) == NEW


def test_a_call_older_than_a_full_window_never_begins():
    window = native.SendWindow(1)
    for call in (5, 6):
        window.begin(call)
    window.deliver(5)
    assert not window.may_begin(3)
    assert window.may_begin(7)
