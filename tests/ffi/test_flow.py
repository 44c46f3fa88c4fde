"""Numbers, acknowledgements, loss and window between two ranks; times in seconds."""

import collections
import random

import hypothesis
import pytest
from flows import DATAGRAM_BYTES, make_flow, send_windows
from hypothesis import strategies as st

import optireduce_testing as native


def test_a_delivered_datagram_is_reported_once():
    sender, receiver = make_flow(), make_flow()
    receiver.record(0.001, sender.track(0.0, 11, DATAGRAM_BYTES))
    acknowledgement = receiver.make_acknowledgement(0.001)
    assert sender.handle_acknowledgement(0.002, acknowledgement) == [(11, True)]
    assert sender.handle_acknowledgement(0.003, acknowledgement) == []


def test_a_datagram_overtaken_by_many_is_lost():
    sender, receiver = make_flow(), make_flow()
    numbers = [sender.track(0.0, cargo, DATAGRAM_BYTES) for cargo in range(20)]
    for number in numbers[1:]:
        receiver.record(0.001, number)
    deliveries = sender.handle_acknowledgement(
        0.002, receiver.make_acknowledgement(0.001)
    )
    assert (0, False) in deliveries
    assert sorted(deliveries) == [
        (0, False),
        *[(cargo, True) for cargo in range(1, 20)],
    ]


def test_one_acknowledgement_for_a_thousand_datagrams_tells_of_all_of_them():
    sender, receiver = make_flow(4 << 20), make_flow(4 << 20)
    count = 0
    while count < 1000:
        sent = []
        while sender.can_send(DATAGRAM_BYTES):
            sent.append(sender.track(float(count), count, DATAGRAM_BYTES))
            count += 1
        for number in sent:
            receiver.record(float(count), number)
        deliveries = sender.handle_acknowledgement(
            float(count), receiver.make_acknowledgement(float(count))
        )
        assert len(deliveries) == len(sent)
        assert all(delivered for _, delivered in deliveries)


def test_a_datagram_overtaken_by_a_few_is_not_lost_yet():
    sender, receiver = make_flow(), make_flow()
    numbers = [sender.track(0.0, cargo, DATAGRAM_BYTES) for cargo in range(5)]
    for number in numbers[1:]:
        receiver.record(0.001, number)
    deliveries = sender.handle_acknowledgement(
        0.002, receiver.make_acknowledgement(0.001)
    )
    assert (0, False) not in deliveries
    receiver.record(0.003, numbers[0])
    deliveries = sender.handle_acknowledgement(
        0.004, receiver.make_acknowledgement(0.003)
    )
    assert deliveries == [(0, True)]


@pytest.mark.parametrize("round_trip", [0.0002, 0.002, 0.1])
def test_a_datagram_overtaken_by_a_few_is_lost_soon_after_a_round_trip(round_trip):
    sender, receiver = make_flow(), make_flow()
    numbers = [sender.track(0.0, cargo, DATAGRAM_BYTES) for cargo in range(5)]
    for number in [*numbers[:2], *numbers[3:]]:
        receiver.record(round_trip / 2, number)
    deliveries = sender.handle_acknowledgement(
        round_trip, receiver.make_acknowledgement(round_trip / 2)
    )
    assert sorted(deliveries) == [(0, True), (1, True), (3, True), (4, True)]
    at = sender.timeout()
    # A round trip, an eighth of it, and at least a millisecond.
    assert at == pytest.approx(round_trip + max(0.001, round_trip / 8))
    assert sender.handle_timeout(at - 1e-6) == []
    assert sender.handle_timeout(at) == [(2, False)]
    assert sender.timeout() > 1e9  # no datagram is under way


@pytest.mark.parametrize(
    ("window_bytes_max", "every"), [(1 << 20, 16), (48 * DATAGRAM_BYTES, 12), (2048, 8)]
)
def test_an_acknowledgement_is_due_for_a_part_of_a_window_and_after_a_while(
    window_bytes_max, every
):
    receiver = make_flow(window_bytes_max)
    for number in range(every):
        assert not receiver.acknowledgement_due(0.0)
        receiver.record(0.0, number)
    assert receiver.acknowledgement_due(0.0)
    receiver.make_acknowledgement(0.0)
    receiver.record(0.0, every)
    assert not receiver.acknowledgement_due(0.0)
    assert receiver.acknowledgement_due(receiver.timeout())


def test_a_window_of_few_datagrams_on_one_host_is_acknowledged_twice():
    sender = native.Flow(2048, DATAGRAM_BYTES, same_host=True)
    receiver = native.Flow(2048, DATAGRAM_BYTES, same_host=True)
    sent = 0
    while sender.can_send(DATAGRAM_BYTES):
        receiver.record(0.0, sender.track(0.0, sent, DATAGRAM_BYTES))
        sent += 1
        assert receiver.acknowledgement_due(0.0) == (sent >= 2)
    assert sent == 4


@pytest.mark.parametrize("same_host", [False, True])
@pytest.mark.parametrize(("datagrams", "every"), [(8, 8), (12, 8), (40, 10), (200, 16)])
@pytest.mark.parametrize("size", [DATAGRAM_BYTES, 700])
def test_a_full_window_does_not_wait_until_the_receiver_acknowledges_after_a_while(
    datagrams, every, size, same_host
):
    window_bytes_max = datagrams * DATAGRAM_BYTES
    sender = native.Flow(window_bytes_max, DATAGRAM_BYTES, same_host=same_host)
    receiver = make_flow(window_bytes_max)
    now = 0.0
    for _ in range(50):
        arrival = now
        sent = 0
        while sender.can_send(size) and sender.may_start(now):
            receiver.record(arrival, sender.track(now, sent, size))
            sent += 1
            now += 0.001  # Longer than any pace.
        sender.request_room()
        assert sender.pop_probe() == (sent < every)
        if sent < every:
            receiver.record(arrival, sender.track_probe(now), at_once=True)
            sender.request_room()
            assert not sender.pop_probe()
        assert receiver.acknowledgement_due(arrival)
        acknowledgement = receiver.make_acknowledgement(arrival)
        sender.handle_acknowledgement(now, acknowledgement)


def test_silence_makes_a_probe_whose_answer_finds_the_loss():
    sender, receiver = make_flow(), make_flow()
    sender.track(0.0, 5, DATAGRAM_BYTES)
    at = sender.timeout()
    assert 0 < at < 1
    assert sender.handle_timeout(at) == []
    assert sender.pop_probe()
    assert not sender.pop_probe()
    receiver.record(at + 0.001, sender.track(at, 99, 40))
    deliveries = sender.handle_acknowledgement(
        at + 0.002, receiver.make_acknowledgement(at + 0.001)
    )
    assert sorted(deliveries) == [(5, False), (99, True)]


class Bottleneck:
    """A flow over a link of 333 Mbit/s, with half a millisecond each way."""

    RATE = 333e6 / 8
    ONE_WAY_S = 0.0005

    def __init__(self):
        self.sender, self.receiver = make_flow(16 << 20), make_flow(16 << 20)
        self.now = 0.0
        self.sent = 0
        self._busy_until = 0.0
        self._arrivals = collections.deque()

    def run(self, seconds: float, stalled: bool = False):
        """Sends what may leave. While the receiver is stalled, nothing reaches it."""
        end = self.now + seconds
        while self.now < end:
            self._send()
            if not stalled:
                self._receive()
            self.sender.handle_timeout(self.now)
            self.now += 0.0001

    def _send(self):
        while self.sender.can_send(DATAGRAM_BYTES):
            if not self.sender.may_start(self.now):
                return
            number = self.sender.track(self.now, self.sent, DATAGRAM_BYTES)
            self.sent += 1
            start = max(self._busy_until, self.now)
            self._busy_until = start + DATAGRAM_BYTES / self.RATE
            self._arrivals.append((self._busy_until + self.ONE_WAY_S, number))
        self.sender.request_room()
        self.sender.pop_probe()

    def _receive(self):
        while self._arrivals and self._arrivals[0][0] <= self.now - self.ONE_WAY_S:
            at, number = self._arrivals.popleft()
            self.receiver.record(at, number)
            if self.receiver.acknowledgement_due(at):
                self._answer(at)
        if self.receiver.acknowledgement_due(self.now - self.ONE_WAY_S):
            self._answer(self.now - self.ONE_WAY_S)

    def _answer(self, at: float):
        answer = self.receiver.make_acknowledgement(at)
        self.sender.handle_acknowledgement(self.now, answer)


def test_data_leaves_at_its_former_rate_while_the_peer_is_stalled():
    path = Bottleneck()
    path.run(0.3)
    before = path.sent
    path.run(0.02, stalled=True)
    part = (path.sent - before) * DATAGRAM_BYTES / (0.02 * path.RATE)
    assert 0.75 < part < 1.2


def test_an_acknowledgement_ends_the_room_for_overdue_ones():
    path = Bottleneck()
    path.run(0.3)
    window_bytes = path.sender.window_bytes()
    path.run(0.02, stalled=True)
    assert path.sender.window_bytes() > 3 * window_bytes
    path.run(0.001)
    assert path.sender.window_bytes() <= 1.5 * window_bytes


def test_a_peer_that_stays_stalled_gets_no_more_data():
    path = Bottleneck()
    path.run(0.3)
    before, window_bytes = path.sent, path.sender.window_bytes()
    path.run(0.1, stalled=True)
    most_bytes = window_bytes + 1.3 * path.RATE * 0.032
    assert (path.sent - before) * DATAGRAM_BYTES < most_bytes


def test_acknowledgements_that_come_more_slowly_make_no_room():
    path = Bottleneck()
    path.run(0.3)
    path.RATE /= 4
    for _ in range(1000):
        before = path.sender.window_bytes()
        path.run(0.0001)
        assert path.sender.window_bytes() < 2 * before


def test_a_peer_that_never_answers_is_given_up_and_its_window_shrinks():
    sender = make_flow()
    send_windows(sender, make_flow(), range(5))
    before = sender.window_bytes()
    sender.track(1.0, 5, DATAGRAM_BYTES)
    deliveries = []
    for _ in range(10):
        deliveries += sender.handle_timeout(sender.timeout())
        sender.pop_probe()
        if deliveries:
            break
    assert deliveries == [(5, False)]
    assert sender.window_bytes() == 2 * DATAGRAM_BYTES < before


def test_the_window_limits_what_is_under_way():
    sender = make_flow()
    sent = 0
    while sender.can_send(DATAGRAM_BYTES):
        sender.track(0.0, sent, DATAGRAM_BYTES)
        sent += 1
    assert sent == sender.window_bytes() // DATAGRAM_BYTES


def test_a_batch_waits_for_room_for_more_than_a_datagram():
    sender = native.Flow(1 << 16, DATAGRAM_BYTES, same_host=True)
    receiver = make_flow()
    numbers = []
    while sender.can_send(DATAGRAM_BYTES):
        numbers.append(sender.track(0.0, len(numbers), DATAGRAM_BYTES))
    for number in numbers:
        receiver.record(0.0001, number)
        acknowledgement = receiver.make_acknowledgement(0.0001)
        sender.handle_acknowledgement(0.0002, acknowledgement)
        if sender.may_start(1.0):
            break
        assert sender.can_send(DATAGRAM_BYTES)
    # Neither one by one, nor only once no datagram is under way.
    assert 4 <= number <= len(numbers) / 2


def test_what_waits_for_room_may_leave_when_nothing_is_under_way():
    sender = make_flow()
    assert sender.may_start(0.0)
    sender.track(0.0, 0, DATAGRAM_BYTES)
    assert sender.may_start(1.0)


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_a_few_per_cent_of_random_loss_do_not_shrink_the_window(loss):
    sender, receiver = make_flow(), make_flow()
    send_windows(sender, receiver, range(5))
    before = sender.window_bytes()
    rng = random.Random(7)
    send_windows(sender, receiver, range(5, 205), lambda _: rng.random() < loss)
    assert sender.window_bytes() >= before


def test_loss_of_every_other_datagram_shrinks_the_window():
    sender, receiver = make_flow(), make_flow()
    send_windows(sender, receiver, range(5))
    before = sender.window_bytes()
    send_windows(sender, receiver, range(5, 55), lambda number: number % 2 == 0)
    assert sender.window_bytes() < before / 2


def test_an_acknowledgement_of_a_number_that_was_never_used_says_nothing():
    sender, receiver = make_flow(), make_flow()
    used = [sender.track(0.0, cargo, DATAGRAM_BYTES) for cargo in range(3)]
    for number in used:
        receiver.record(0.0, number)
    honest = receiver.make_acknowledgement(0.0)
    receiver.record(0.0, used[-1] + 1)
    assert (
        sender.handle_acknowledgement(0.001, receiver.make_acknowledgement(0.0)) == []
    )
    deliveries = sender.handle_acknowledgement(0.001, honest)
    assert deliveries == [(cargo, True) for cargo in range(3)]


@hypothesis.given(st.integers(0, 2**32), st.floats(0, 0.4))
def test_every_tracked_datagram_gets_exactly_one_fate(seed, loss):
    rng = random.Random(seed)
    sender, receiver = make_flow(), make_flow()
    deliveries: dict[int, bool] = {}

    def note(acknowledged):
        for cargo, delivered in acknowledged:
            assert cargo not in deliveries
            deliveries[cargo] = delivered

    arrived = set()
    now = 0.0
    cargo = 0
    for _ in range(60):
        for _ in range(rng.randrange(12)):
            if sender.can_send(DATAGRAM_BYTES):
                number = sender.track(now, cargo, DATAGRAM_BYTES)
                if rng.random() >= loss:
                    receiver.record(now, number)
                    arrived.add(cargo)
                cargo += 1
        now += 0.001
        if receiver.acknowledgement_due(now) and rng.random() >= loss:
            note(sender.handle_acknowledgement(now, receiver.make_acknowledgement(now)))
        if sender.timeout() <= now:
            note(sender.handle_timeout(now))
            if sender.pop_probe():
                sender.track(now, cargo, 40)  # lost
                cargo += 1
    for _ in range(50):
        now = max(now, sender.timeout())
        if now > 1e6:
            break
        note(sender.handle_timeout(now))
        if sender.pop_probe():
            receiver.record(now, sender.track(now, cargo, 40))
            arrived.add(cargo)
            cargo += 1
            now += 0.001
            note(sender.handle_acknowledgement(now, receiver.make_acknowledgement(now)))
    assert sorted(deliveries) == list(range(cargo))
    assert all(
        tracked in arrived for tracked, delivered in deliveries.items() if delivered
    )


def test_a_weight_changes_what_may_be_under_way_within_what_the_receiver_holds():
    flow = make_flow()
    send_windows(flow, make_flow(), range(5))
    usual = flow.window_bytes()
    flow.set_weight(2)
    assert flow.window_bytes() == 2 * usual
    flow.set_weight(0.5)
    assert flow.window_bytes() == usual // 2
    flow.set_weight(100)
    assert flow.window_bytes() == 1 << 20
    # Even the smallest window lets some datagrams leave.
    small = native.Flow(DATAGRAM_BYTES, DATAGRAM_BYTES)
    small.set_weight(0.5)
    assert small.window_bytes() == 2 * DATAGRAM_BYTES
    near = native.Flow(1 << 20, DATAGRAM_BYTES, same_host=True)
    near.set_weight(0.5)
    assert near.window_bytes() == 1 << 20


def test_whatever_its_weight_a_flow_to_a_small_receiver_may_send():
    flow = make_flow(window_bytes_max=DATAGRAM_BYTES // 2)
    for weight in (0.5, 1, 2):
        flow.set_weight(weight)
        assert flow.can_send(DATAGRAM_BYTES)


# ---------------------------------------------------------------------- refused


def test_a_refused_datagram_comes_back_as_refused_and_is_not_lost():
    sender, receiver = make_flow(), make_flow()
    for cargo in range(40):
        number = sender.track(0.0, cargo, DATAGRAM_BYTES)
        receiver.record(0.001, number, refused=cargo % 3 == 0)
    deliveries = sender.handle_acknowledgement(
        0.002, receiver.make_acknowledgement(0.001)
    )
    assert deliveries == [(c, None if c % 3 == 0 else True) for c in range(40)]


def test_refusals_shrink_no_window():
    sender, receiver = make_flow(), make_flow()
    before = sender.window_bytes()
    now = 0.0
    for _ in range(30):
        while sender.can_send(DATAGRAM_BYTES):
            number = sender.track(now, 0, DATAGRAM_BYTES)
            receiver.record(now, number, refused=True)
        now += 0.001
        sender.handle_acknowledgement(now, receiver.make_acknowledgement(now))
    assert sender.window_bytes() >= before


# ---------------------------------------------------------------------- black holes


def exchange(sender, receiver, now: float, longest: int, lengths) -> None:
    """Sends datagrams of these lengths; those up to `longest` arrive."""
    for length in lengths:
        number = sender.track(now, length, length)
        if length <= longest:
            receiver.record(now, number)
    sender.handle_timeout(now)
    sender.handle_acknowledgement(now, receiver.make_acknowledgement(now))


def test_a_path_that_loses_all_long_datagrams_for_long_is_a_black_hole():
    sender, receiver = make_flow(), make_flow()
    now = 0.0
    while now < 3.9:
        exchange(sender, receiver, now, 1000, [1472, 700, 40])
        assert sender.black_hole(4.0) is None
        now += 0.05
    for _ in range(10):
        now += 0.05
        exchange(sender, receiver, now, 1000, [1472, 700, 40])
    assert sender.black_hole(4.0) == (1472, 700)
    # The path is repaired.
    exchange(sender, receiver, now, 1472, [1472])
    assert sender.black_hole(4.0) is None


def test_a_black_hole_shows_by_the_datagrams_that_are_still_sent():
    sender, receiver = make_flow(), make_flow()
    now = 0.0
    for _ in range(20):
        now += 0.05
        exchange(sender, receiver, now, 1000, [1472, 1100, 700, 40])
    while now < 6.0:
        now += 0.05
        exchange(sender, receiver, now, 1000, [1100, 700, 40])
    assert sender.black_hole(4.0) == (1100, 700)


def narrow_while_one_is_lost(sender, receiver) -> None:
    """Loses a datagram of 1472 bytes; then 1208 bytes is the last length to arrive."""
    exchange(sender, receiver, 0.0, 1208, [1472, 40])
    exchange(sender, receiver, 0.1, 1208, [40])
    exchange(sender, receiver, 0.2, 1208, [1208, 40])


def test_a_black_hole_says_what_passes_now_and_not_what_passed_before():
    sender, receiver = make_flow(), make_flow()
    now = 0.2
    narrow_while_one_is_lost(sender, receiver)
    while sender.black_hole(4.0) is None:
        now += 0.3
        exchange(sender, receiver, now, 1000, [1472, 1472, 1472, 1208, 700, 40])
    assert sender.black_hole(4.0) == (1472, 700)


def test_the_end_of_a_batch_that_a_host_refuses_is_not_too_long_itself():
    sender, receiver = make_flow(), make_flow()
    now = 0.0
    while sender.black_hole(4.0) is None:
        now += 0.3
        for _ in range(4):
            sender.track(now, 0, 1472)
            sender.track(now, 0, 980, batch_bytes=1472)
        exchange(sender, receiver, now, 700, [700, 40, 40, 40])
        assert now < 60
    assert sender.black_hole(4.0) == (1472, 700)


def test_a_black_hole_may_be_narrower_than_what_arrived_after_the_first_loss():
    sender, receiver = make_flow(), make_flow()
    now = 0.2
    narrow_while_one_is_lost(sender, receiver)
    while now < 8.0:
        now += 0.1
        exchange(sender, receiver, now, 1000, [1208, 700, 40])
    assert sender.black_hole(4.0) == (1208, 700)


@hypothesis.given(st.integers(0, 2**32), st.floats(0.1, 0.5))
@hypothesis.settings(max_examples=30)
def test_loss_by_chance_is_no_black_hole(seed, loss):
    random_ = random.Random(seed)
    sender, receiver = make_flow(), make_flow()
    for step in range(400):
        longest = 40 if random_.random() < loss else 1472
        exchange(sender, receiver, step * 0.02, longest, [1472, 40])
        assert sender.black_hole(4.0) is None


def test_a_path_that_loses_everything_is_no_black_hole():
    sender, receiver = make_flow(), make_flow()
    exchange(sender, receiver, 0.0, 1472, [1472, 40])
    now = 0.0
    while now < 20.0:
        now += 0.05
        for length in (1472, 40):
            if sender.can_send(length):
                sender.track(now, length, length)
        sender.handle_timeout(now)
    for _ in range(20):
        now += 0.001
        exchange(sender, receiver, now, 40, [1472, 40])
    assert sender.black_hole(4.0) is None
