"""Window, share and pace from round trips; times in seconds."""

import random

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

DATAGRAM_BYTES = 1472
LEAST = 2 * DATAGRAM_BYTES
# An unused window keeps so much, and any receiver has room for it.
SMALL = 8 * DATAGRAM_BYTES
SMALL_ON_ONE_HOST = 4 * DATAGRAM_BYTES
MOST = 1 << 20
GBPS = 125e6  # bytes in a second


class Path:
    """A full-duplex link with a queue, limited by the window only."""

    def __init__(self, controller, rate=GBPS, delay=200e-6, loss=0.0, others=0):
        self.controller = controller
        self.rate = rate
        self.delay = delay
        self.loss = loss
        # bytes of competing traffic that always stand in the queue
        self.others = others
        self.now = 0.0
        self.random = random.Random(1)

    def run(self, rounds: int) -> float:
        """Returns our part of the link in the last quarter of the round trips."""
        parts = []
        for _ in range(rounds):
            window = self.controller.window_bytes()
            # The data passes the queue in sequence, for the duration of the round trip.
            under_way = window + self.others
            elapsed = max(self.delay, under_way / self.rate)
            datagrams = window // DATAGRAM_BYTES
            lost = sum(self.random.random() < self.loss for _ in range(datagrams))
            self.now += elapsed
            self.controller.handle_round_trip(
                self.now,
                elapsed,
                elapsed,
                (datagrams - lost) * DATAGRAM_BYTES,
                lost * DATAGRAM_BYTES,
            )
            parts.append(window / elapsed / self.rate)
        last = parts[-max(rounds // 4, 1) :]
        return sum(last) / len(last)

    def queue(self) -> float:
        return (self.controller.window_bytes() + self.others) / self.rate - self.delay


@pytest.mark.parametrize("rate", [0.1 * GBPS, GBPS, 2.5 * GBPS])
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1, 0.3])
def test_a_link_is_filled_whatever_is_lost_at_random(rate, loss):
    path = Path(native.CongestionController(MOST), rate, loss=loss)
    assert path.run(200) > 0.95


@pytest.mark.parametrize("rate", [0.1 * GBPS, GBPS])
def test_the_queue_stays_near_its_aim(rate):
    controller = native.CongestionController(MOST)
    path = Path(controller, rate)
    path.run(200)
    aim = 1e-3 + controller.share_bytes() / rate
    # The round trip of the first window counts as that of the path.
    assert 0.5 * aim < path.queue() < aim + 32768 / rate


def test_a_standing_queue_of_somebody_else_costs_half_at_most():
    controller = native.CongestionController(MOST)
    path = Path(controller)
    path.run(100)
    least_share = controller.share_bytes()
    path.others = 400_000
    assert 0.4 < path.run(400) < 0.7
    assert controller.share_bytes() > least_share
    path.others = 0
    path.run(400)
    assert controller.share_bytes() == least_share
    assert path.queue() < 2.5e-3


def test_a_stall_is_forgotten():
    controller = native.CongestionController(MOST)
    path = Path(controller)
    path.run(100)
    for _ in range(5):
        path.now += 0.02
        controller.handle_round_trip(path.now, 0.02, 0.02, controller.window_bytes())
    assert path.run(100) > 0.95


def test_half_of_the_data_lost_is_never_taken_for_well():
    controller = native.CongestionController(MOST)
    Path(controller, loss=0.55).run(200)
    assert controller.window_bytes() < 16 * LEAST


def test_loss_that_answers_keeps_the_window_below_the_queue():
    controller = native.CongestionController(MOST)
    now = 0.0
    for _ in range(200):
        now += 0.001
        window = controller.window_bytes()
        lost = max(0, window - 100_000)  # a queue too short to be noticed
        controller.handle_round_trip(now, 0.0005, 0.0005, window - lost, lost)
    assert controller.window_bytes() < 160_000


def test_what_is_not_used_is_given_up():
    controller = native.CongestionController(MOST)
    Path(controller, 10 * GBPS).run(50)
    before = controller.window_bytes()
    for i in range(20):
        controller.handle_round_trip(1.0 + i, 0.001, 0.0003, 3000, limited=False)
    assert controller.window_bytes() == SMALL < before / 4


def test_silence_begins_anew():
    controller = native.CongestionController(MOST)
    Path(controller).run(100)
    controller.handle_silence()
    assert controller.window_bytes() == LEAST


def test_only_paths_that_are_slower_than_timers_are_paced():
    slow, fast = native.CongestionController(MOST), native.CongestionController(MOST)
    Path(slow).run(100)
    Path(fast, 16 * GBPS).run(100)
    burst = 64 * 1024
    # A quarter above the rate.
    assert slow.pacing_interval(burst) == pytest.approx(burst / GBPS / 1.25, rel=0.1)
    assert slow.burst_bytes() == slow.window_bytes() // 2
    assert fast.pacing_interval(burst) == 0
    assert fast.burst_bytes() == burst


def test_between_processes_of_one_host_only_the_receiver_limits():
    controller = native.CongestionController(MOST, same_host=True)
    assert controller.window_bytes() == MOST
    # Busy cores look like a long queue.
    controller.handle_round_trip(1.0, 0.1, 0.1, MOST // 2, MOST // 2)
    assert controller.window_bytes() == MOST
    assert controller.pacing_interval(MOST) == 0


def test_a_silent_process_of_this_host_gets_little_until_it_answers():
    controller = native.CongestionController(MOST, same_host=True)
    controller.handle_silence()
    assert controller.window_bytes() == LEAST
    controller.handle_round_trip(1.0, 0.1, 0.1, LEAST)
    assert controller.window_bytes() == MOST


@hypothesis.given(st.data())
def test_the_window_stays_within_its_bounds(data):
    sharers = data.draw(st.integers(1, 63))
    most = data.draw(st.integers(0, 4 << 20))
    same_host = data.draw(st.booleans())
    controller = native.CongestionController(most, sharers=sharers, same_host=same_host)
    bound = max(most, SMALL_ON_ONE_HOST if same_host else SMALL)
    now = 0.0
    for _ in range(data.draw(st.integers(1, 60))):
        elapsed = data.draw(st.floats(1e-9, 10))
        now += elapsed
        controller.handle_round_trip(
            now,
            elapsed,
            data.draw(st.floats(1e-9, elapsed)),
            data.draw(st.integers(0, 4 << 20)),
            data.draw(st.integers(0, 4 << 20)),
            data.draw(st.booleans()),
        )
        assert LEAST <= controller.window_bytes() <= bound
        assert controller.share_bytes() <= max(most, 64 * 1024)
        assert 0 <= controller.pacing_interval(DATAGRAM_BYTES) <= 10


def test_a_path_begins_with_the_least_window_and_the_share_of_its_sharers():
    controller = native.CongestionController(MOST, sharers=1)
    controller.set_sharers(8, MOST // 8)
    assert controller.window_bytes() == LEAST
    fresh = native.CongestionController(MOST // 8, sharers=8)
    assert controller.share_bytes() == fresh.share_bytes()


def test_a_window_that_was_measured_keeps_what_more_sharers_leave_it():
    path = Path(native.CongestionController(MOST))
    path.run(200)
    window = path.controller.window_bytes()
    path.controller.set_sharers(2, 2 * window)
    assert path.controller.window_bytes() == window
    path.controller.set_sharers(64, window // 2)
    assert path.controller.window_bytes() == window // 2
    assert path.controller.share_bytes() == 4096


def test_a_round_trip_that_other_paths_do_not_have_is_a_queue():
    windows = []
    for other_s in (None, 200e-6):
        controller = native.CongestionController(MOST)
        now = 0.0
        for _ in range(60):
            now += 0.005
            if other_s:
                controller.note_other_path(now, other_s)
            delivered = controller.window_bytes()
            controller.handle_round_trip(now, 0.005, 0.005, delivered)
        windows.append(controller.window_bytes())
    alone, beside = windows
    assert beside < alone / 2
