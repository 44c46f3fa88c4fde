"""Injected faults: as frequent as requested, and reproducible by seed."""

import math
import time

import hypothesis
import pytest
from hypothesis import strategies as st

import optireduce_testing as native

SIZE = 64
BATCH = 8

# A busy kernel delivers on loopback shortly after `send` has returned.
QUIET_S = 0.05
# Longer than any wait of a busy machine that is not stuck.
PATIENCE_S = 20.0

FRACTIONS = ["loss", "duplicate", "reorder", "corrupt", "truncate"]


def datagrams(count: int) -> list[bytes]:
    return [i.to_bytes(4, "big") * (SIZE // 4) for i in range(count)]


def take(port: native.UdpPort, quiet_s: float = QUIET_S) -> list[bytes]:
    """Receives until no datagram has come for `quiet_s`."""
    received = []
    while (taken := port.receive()) or port.wait(quiet_s) < quiet_s:
        received += taken
    return received


class Pair:
    """A port that injects faults, and one that receives its datagrams."""

    def __init__(self, **settings: float) -> None:
        self.sender = native.UdpPort()
        self.receiver = native.UdpPort()
        peer = ("127.0.0.1", self.receiver.local_port)
        self.sender.set_peers([peer], SIZE)
        self.sender.add_faults(settings)

    def send(self, sent: list[bytes]) -> list[bytes]:
        """Sends, in batches, and returns immediate arrivals."""
        received = []
        for i in range(0, len(sent), BATCH):
            assert self.sender.send(0, [b"".join(sent[i : i + BATCH])], SIZE)
            received += take(self.receiver, quiet_s=0)
        return received + take(self.receiver)

    def finish(self) -> list[bytes]:
        """Releases all datagrams that were held back."""
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            self.sender.wait(0.01)
        return take(self.receiver)

    def done(self) -> dict[str, int]:
        return self.sender.faults_done()


def assert_binomial(count: int, trials: int, probability: float) -> None:
    """Within six standard deviations: fails by chance once in 10^9."""
    deviation = math.sqrt(trials * probability * (1 - probability))
    assert abs(count - trials * probability) <= 6 * deviation + 1


def test_from_some_time_on_nothing_passes_in_either_direction():
    sent = datagrams(8)
    silent_after_s, over_s = 0.3, math.inf
    # On a busy machine the time may be over before the datagrams have left.
    while over_s > silent_after_s:
        start = time.monotonic()
        pair = Pair(silent_after_s=silent_after_s)
        received = pair.send(sent)
        over_s = time.monotonic() - start
    assert received == sent
    while time.monotonic() < start + over_s + silent_after_s:
        pair.sender.wait(0.01)
    assert pair.send(sent) == []
    assert pair.done()["loss"] == 8
    back = ("127.0.0.1", pair.sender.local_port)
    pair.receiver.set_peers([back], SIZE)
    assert pair.receiver.send(0, [sent[0]], SIZE)
    assert take(pair.sender) == []


def test_without_faults_everything_comes_through():
    pair = Pair(seed=1)
    sent = datagrams(500)
    assert pair.send(sent) == sent
    assert pair.done() == dict.fromkeys(FRACTIONS, 0) | {"offered": 500}


@pytest.mark.parametrize("fraction", [0.001, 0.05, 0.5])
@pytest.mark.parametrize("name", FRACTIONS)
def test_each_harm_is_done_as_often_as_asked_for(name, fraction):
    trials = 5000
    pair = Pair(**{name: fraction, "seed": 7})
    received = pair.send(datagrams(trials)) + pair.finish()
    done = pair.done()
    assert done["offered"] == trials
    assert_binomial(done[name], trials, fraction)
    assert sum(done[other] for other in FRACTIONS if other != name) == 0
    assert len(received) == trials - done["loss"] + done["duplicate"]


def test_all_harms_together_are_each_done_as_often_as_asked_for():
    trials = 5000
    pair = Pair(**dict.fromkeys(FRACTIONS, 0.1), seed=3)
    received = pair.send(datagrams(trials)) + pair.finish()
    done = pair.done()
    assert_binomial(done["loss"], trials, 0.1)
    for name in FRACTIONS[1:]:  # Lost datagrams have no other faults.
        assert_binomial(done[name], trials, 0.09)
    assert len(received) == trials - done["loss"] + done["duplicate"]


@pytest.mark.parametrize("name", FRACTIONS)
def test_a_fraction_of_one_harms_every_datagram(name):
    pair = Pair(**{name: 1.0})
    pair.send(datagrams(100))
    pair.finish()
    assert pair.done()[name] == 100


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    seed=st.integers(0, 2**53),
    fractions=st.dictionaries(
        st.sampled_from(["loss", "duplicate", "corrupt", "truncate"]), st.floats(0, 1)
    ),
)
def test_the_same_seed_does_the_same_harm(seed, fractions):
    sent = datagrams(200)
    one, two = (Pair(**fractions, seed=seed) for _ in range(2))
    assert one.send(sent) == two.send(sent)
    assert one.done() == two.done()


def test_another_seed_does_other_harm():
    sent = datagrams(200)
    assert Pair(loss=0.5, seed=1).send(sent) != Pair(loss=0.5, seed=2).send(sent)


def test_one_harm_does_not_shift_another():
    sent = datagrams(500)
    lossy = Pair(loss=0.2, seed=5).send(sent)
    lossy_and_doubled = Pair(loss=0.2, duplicate=0.3, seed=5).send(sent)
    assert lossy == list(dict.fromkeys(lossy_and_doubled))


def test_corruption_flips_one_bit():
    sent = datagrams(200)
    received = Pair(corrupt=1.0).send(sent)
    assert len(received) == len(sent)
    for before, after in zip(sent, received, strict=True):
        difference = int.from_bytes(before, "big") ^ int.from_bytes(after, "big")
        assert difference.bit_count() == 1


def test_truncation_leaves_a_beginning():
    sent = datagrams(500)
    received = Pair(truncate=1.0).send(sent)
    assert len(received) == len(sent)
    for before, after in zip(sent, received, strict=True):
        assert 1 <= len(after) < len(before)
        assert before.startswith(after)
    assert len({len(after) for after in received}) > SIZE // 2


def test_reordering_lets_a_few_overtake_and_loses_nothing():
    sent = datagrams(2000)
    pair = Pair(reorder=0.1, seed=11)
    received = pair.send(sent) + pair.finish()
    assert sorted(received) == sent
    assert received != sent
    overtaken_by = [
        sum(later < datagram for later in received[i + 1 : i + 30])
        for i, datagram in enumerate(received)
    ]
    assert 1 <= max(overtaken_by) <= 30


def test_what_is_held_back_leaves_in_time_when_nothing_follows():
    pair = Pair(reorder=1.0)
    begin = time.monotonic()
    assert pair.sender.send(0, datagrams(1), SIZE)
    assert pair.sender.wait(PATIENCE_S) < PATIENCE_S  # Ends when the datagram is due.
    assert take(pair.receiver) == datagrams(1)
    assert time.monotonic() - begin >= 0.02


def test_delay_keeps_the_order():
    pair = Pair(delay_s=0.05)
    sent = datagrams(50)
    begin = time.monotonic()
    received = pair.send(sent)
    assert received == [] or time.monotonic() - begin >= 0.05
    while len(received) < len(sent) and time.monotonic() < begin + PATIENCE_S:
        pair.sender.wait(0.01)
        received += take(pair.receiver, quiet_s=0)
    assert received == sent
    assert time.monotonic() - begin >= 0.05


def test_other_directions_are_left_alone():
    pair = Pair(loss=1.0)
    pair.receiver.set_peers([("127.0.0.1", pair.sender.local_port)], SIZE)
    assert pair.receiver.send(0, [b"back"], SIZE)
    assert take(pair.sender) == [b"back"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lose": 0.1}, 'there is no fault "lose"; expected loss, duplicate'),
        ({"loss": 1.5}, r"loss must be a fraction in \[0, 1\].*got 1.5"),
        ({"reorder": -0.1}, r"reorder must be a fraction in \[0, 1\]"),
        ({"corrupt": math.nan}, r"corrupt must be a fraction in \[0, 1\]"),
        ({"delay_s": 200.0}, "delay_s must be 0 to 60 seconds, got 200"),
        ({"delay_s": math.nan}, "delay_s must be 0 to 60 seconds"),
        ({"silent_after_s": -1.0}, "silent_after_s must be 0 to 3600 seconds, got -1"),
        ({"lane": 64.0}, "lane must be a whole number in"),
        ({"lane": 0.5}, "lane must be a whole number in"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"seed": -1.0}, "seed must be a whole number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        native.check_faults(settings)
