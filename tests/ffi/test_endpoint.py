"""Endpoints driven by hand in virtual time: what they refuse, and how calls end."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from jax_optireduce import _testing

SECRET = bytes(range(32))


class Net:
    """Ranks joined by a perfect network; tests may lose or keep datagrams."""

    def __init__(self, world_size: int, **options):
        self.ranks = [
            _testing.Endpoint(rank, world_size, SECRET, **options)
            for rank in range(world_size)
        ]
        self.now = 1.0
        self.done: list[dict[int, tuple]] = [{} for _ in self.ranks]
        self.wire: list[tuple[int, bytes]] = []
        self.silent: set[int] = set()
        self.submitted: list[np.ndarray] = []  # endpoints write into them

    def submit(
        self, rank, array, *, name="x", fingerprint=1, sequence=0, drop=False, token=0
    ):
        self.submitted.append(array)
        return self.ranks[rank].submit(
            self.now,
            name,
            f"{name}: float32[{array.size}]",
            fingerprint,
            drop,
            0.1,
            list(range(len(self.ranks))),
            sequence,
            token,
            array,
        )

    def collect(self):
        """Takes what the ranks have to send and to tell."""
        for rank, endpoint in enumerate(self.ranks):
            while (transmit := endpoint.poll_transmit(self.now, 8)) is not None:
                to, datagrams = transmit
                if rank not in self.silent:
                    self.wire += [(to, datagram) for datagram in datagrams]
            while (event := endpoint.poll_event()) is not None:
                assert event[0] not in self.done[rank], "a call ended twice"
                self.done[rank][event[0]] = event[1:]

    def run_until_rank_0_is_done(self):
        """Lets datagrams arrive one by one; what is left stays in `wire`."""
        while not self.done[0]:
            self.collect()
            if self.wire:
                to, datagram = self.wire.pop(0)
                self.ranks[to].handle_datagram(self.now, datagram)

    def run(self, seconds: float = 1.0):
        end = self.now + seconds
        while True:
            self.collect()
            if self.wire:
                to, datagram = self.wire.pop(0)
                if to not in self.silent:
                    self.ranks[to].handle_datagram(self.now, datagram)
                continue
            at = min(
                e.poll_timeout()
                for r, e in enumerate(self.ranks)
                if r not in self.silent
            )
            if at > end:
                self.now = end
                return
            self.now = max(self.now, at)
            for rank, endpoint in enumerate(self.ranks):
                if rank not in self.silent:
                    endpoint.handle_timeout(self.now)


def rejected(endpoint) -> dict[str, int]:
    return {
        k: v for k, v in endpoint.counters().items() if k.startswith("rejected") and v
    }


def test_what_waits_for_room_asks_for_it_without_waiting_for_anything():
    net = Net(2, datagram_bytes_max=8972)
    bucket = np.ones(200_000, np.float32)
    net.submit(0, bucket)
    net.collect()
    # A window of a few datagrams is full, and no time passes.
    counters = net.ranks[0].counters()
    assert 0 < counters["bytes_sent"] < bucket.nbytes / 2
    assert counters["probes_sent"] == 1


@hypothesis.given(
    world_size=st.integers(1, 6), elements=st.integers(0, 3000), seed=st.integers(0, 99)
)
@hypothesis.settings(max_examples=40)
def test_every_rank_gets_the_sum(world_size, elements, seed):
    rng = np.random.default_rng(seed)
    inputs = [
        rng.integers(-50, 50, elements).astype(np.float32) for _ in range(world_size)
    ]
    arrays = [x.copy() for x in inputs]
    net = Net(world_size)
    for rank, array in enumerate(arrays):
        assert net.submit(rank, array) == ""
    net.run()
    for rank, array in enumerate(arrays):
        assert net.done[rank][0][0] == ""
        np.testing.assert_array_equal(array, sum(inputs))
    assert all(endpoint.memory_bytes() == 0 for endpoint in net.ranks)


def one_datagram(net: Net) -> tuple[int, bytes]:
    net.submit(0, np.ones(10, np.float32))
    net.collect()
    return net.wire.pop()


@pytest.mark.parametrize(
    ("harm", "counter"),
    [
        (lambda d: d[:39], "rejected_malformed"),
        (lambda d: d[:0], "rejected_malformed"),
        (lambda d: bytes([0x20 | d[0] & 0xF]) + d[1:], "rejected_version"),
        (lambda d: d + bytes(1500), "rejected_oversized"),
        (lambda d: d[:4] + bytes([d[4] ^ 1]) + d[5:], "rejected_foreign"),
        (lambda d: d[:2] + b"\xff\xff" + d[4:], "rejected_foreign"),
        (lambda d: d[:-1], "rejected_unauthenticated"),
        (lambda d: d[:-1] + bytes([d[-1] ^ 1]), "rejected_unauthenticated"),
        (lambda d: d[:8] + bytes([d[8] ^ 1]) + d[9:], "rejected_unauthenticated"),
        (lambda d: d[:30] + bytes([d[30] ^ 1]) + d[31:], "rejected_unauthenticated"),
    ],
)
def test_what_does_not_belong_is_counted_by_name_and_has_no_effect(harm, counter):
    net = Net(2)
    to, datagram = one_datagram(net)
    endpoint = net.ranks[to]
    endpoint.handle_datagram(net.now, harm(datagram))
    assert rejected(endpoint) == {counter: 1}
    assert endpoint.poll_transmit(net.now, 8) is None, "it must not be answered"
    assert endpoint.memory_bytes() == 0


def test_a_repeated_datagram_is_counted_and_has_no_effect():
    net = Net(2)
    arrays = [np.ones(10, np.float32), np.ones(10, np.float32)]
    for rank, array in enumerate(arrays):
        net.submit(rank, array)
    net.collect()
    recorded = list(net.wire)
    net.run()
    for to, datagram in recorded * 2:
        net.ranks[to].handle_datagram(net.now, datagram)
    net.run()
    np.testing.assert_array_equal(arrays[0], 2)
    for endpoint in net.ranks:
        assert rejected(endpoint)["rejected_replayed"] > 0
        assert set(rejected(endpoint)) == {"rejected_replayed"}


@pytest.mark.parametrize("protection", ["none", "authenticate", "encrypt"])
def test_every_protection_gives_the_sum_in_datagrams_of_one_size(protection):
    net = Net(2, protection=protection)
    arrays = [np.full(100, 7, np.float32), np.full(100, 9, np.float32)]
    for rank, array in enumerate(arrays):
        net.submit(rank, array)
    net.collect()
    sent = [datagram for _, datagram in net.wire]
    net.run()
    for array in arrays:
        np.testing.assert_array_equal(array, 16)
    assert max(len(datagram) for datagram in sent) == 40 + 200
    # Nothing of the program is readable in what is encrypted, least of all the values.
    secret_texts = [np.float32(7).tobytes() * 2, b"float32"]
    for text in secret_texts:
        assert any(text in d for d in sent) == (protection != "encrypt")
    assert all(d[-12:] == bytes(12) for d in sent) == (protection == "none")


@pytest.mark.parametrize(
    "other", [{"protection": "encrypt"}, {"session": 78}, {"lane": 1}], ids=str
)
def test_another_protection_session_or_lane_has_other_keys(other):
    here = _testing.Endpoint(0, 2, SECRET)
    there = _testing.Endpoint(1, 2, SECRET, **other)
    array = np.ones(9, np.float32)
    there.submit(0.0, "x", "x", 1, False, 0.1, [0, 1], 0, 0, array)
    _, datagrams = there.poll_transmit(0.0, 8)
    session = (77).to_bytes(4, "little")
    here.handle_datagram(0.0, datagrams[0][:4] + session + datagrams[0][8:])
    assert rejected(here) == {"rejected_unauthenticated": 1}


def test_each_direction_has_its_own_key():
    net = Net(3)
    to, datagram = one_datagram(net)
    source = net.ranks[0]
    # Back to its sender, and as if another rank had sent it.
    reflected = datagram[:2] + to.to_bytes(2, "little") + datagram[4:]
    source.handle_datagram(net.now, reflected)
    other = 3 - to
    net.ranks[other].handle_datagram(net.now, datagram)
    for endpoint in (source, net.ranks[other]):
        assert rejected(endpoint) == {"rejected_unauthenticated": 1}


def test_no_two_datagrams_of_a_direction_have_one_number():
    net = Net(3)
    rng = np.random.default_rng(1)
    arrays = [np.ones(2000, np.float32) for _ in net.ranks]
    used = set()
    for sequence in range(5):
        for rank, array in enumerate(arrays):
            net.submit(rank, array, sequence=sequence, token=sequence)
        for _ in range(100):
            net.collect()
            for to, datagram in net.wire:
                source = int.from_bytes(datagram[2:4], "little")
                number = int.from_bytes(datagram[20:26], "little")
                assert (source, to, number) not in used
                used.add((source, to, number))
                if rng.random() < 0.7:
                    net.ranks[to].handle_datagram(net.now, datagram)
            net.wire.clear()
            net.now += 0.01
            for endpoint in net.ranks:
                endpoint.handle_timeout(net.now)
    assert all(len(done) == 5 for done in net.done)
    assert len(used) > 100


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=200)
def test_no_mutated_datagram_is_accepted(data):
    net = Net(2, protection=data.draw(st.sampled_from(["authenticate", "encrypt"])))
    to, datagram = one_datagram(net)
    mutated = bytearray(datagram)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(
            st.integers(0, 255)
        )
    size = data.draw(st.integers(0, len(mutated)))
    if bytes(mutated[:size]) == datagram:
        return
    net.ranks[to].handle_datagram(net.now, bytes(mutated[:size]))
    assert sum(rejected(net.ranks[to]).values()) == 1
    assert net.ranks[to].counters()["datagrams_received"] == 0


def test_a_silent_rank_is_named_after_the_timeout_and_not_before():
    net = Net(3, peer_timeout_s=2.0)
    net.silent = {2}
    for rank in (0, 1):
        net.submit(rank, np.ones(1000, np.float32))
    net.run(1.9)
    assert net.done[0] == {}
    net.run(0.7)
    for rank in (0, 1):
        message = net.done[rank][0][0]
        assert "rank 2 has been silent for more than 2.0 s" in message
        assert "peer_timeout_s" in message
    again = net.submit(0, np.ones(1000, np.float32), sequence=1, token=1)
    assert "rank 2" in again


def test_a_rank_that_computes_for_long_is_not_taken_for_dead():
    net = Net(3, peer_timeout_s=1.0)
    arrays = [np.full(1000, rank, np.float32) for rank in range(3)]
    for rank in (0, 1):
        net.submit(rank, arrays[rank])
    net.run(20.0)
    assert net.done == [{}, {}, {}]
    net.submit(2, arrays[2])
    net.run(1.0)
    np.testing.assert_array_equal(arrays[0], 3)
    assert all(done[0][0] == "" for done in net.done)


def test_a_rank_that_left_fails_the_calls_that_need_it_at_once():
    net = Net(3)
    for rank in (0, 1):
        net.submit(rank, np.ones(1000, np.float32))
    net.run(0.1)
    net.ranks[2].leave(net.now, "its program has ended")
    net.run(0.1)
    for rank in (0, 1):
        assert "rank 2 has left: its program has ended" in net.done[rank][0][0]
    assert net.ranks[2].finished()


def test_a_rank_may_leave_right_after_its_last_call():
    net = Net(3)
    arrays = [np.ones(1000, np.float32) for _ in range(3)]
    for rank, array in enumerate(arrays):
        net.submit(rank, array)
    net.run_until_rank_0_is_done()
    net.ranks[0].leave(net.now, "its program has ended")
    net.run(0.5)
    for rank in range(3):
        assert net.done[rank][0][0] == ""
        np.testing.assert_array_equal(arrays[rank], 3)


def test_a_rank_that_leaves_keeps_its_sums_for_a_peer_that_is_cut_off_for_a_while():
    net = Net(2, peer_timeout_s=3.0)
    arrays = [np.ones(1000, np.float32) for _ in range(2)]
    for rank, array in enumerate(arrays):
        net.submit(rank, array)
    net.run_until_rank_0_is_done()
    assert not net.done[1]
    net.wire.clear()
    net.silent = {1}
    net.run(1.0)  # many probes in vain
    net.ranks[0].leave(net.now, "its program has ended")
    net.run(1.0)
    assert not net.ranks[0].finished()
    net.silent = set()
    net.run(2.0)
    assert net.done[1][0][0] == ""
    np.testing.assert_array_equal(arrays[1], 2)
    assert net.ranks[0].finished()


def test_a_rank_that_leaves_does_not_wait_for_one_that_is_given_up():
    net = Net(2, peer_timeout_s=1.0)
    arrays = [np.ones(1000, np.float32) for _ in range(2)]
    for rank, array in enumerate(arrays):
        net.submit(rank, array)
    net.run_until_rank_0_is_done()
    net.silent = {1}
    net.ranks[0].leave(net.now, "its program has ended")
    net.run(2.5)
    assert net.ranks[0].finished()


def test_ranks_that_disagree_on_the_shapes_are_both_named_at_once():
    net = Net(3)
    for rank in range(3):
        size = 1000 if rank < 2 else 999
        net.submit(rank, np.ones(size, np.float32), fingerprint=size)
    net.run(0.1)
    for rank in range(3):
        message = net.done[rank][0][0]
        assert "float32[1000]" in message
        assert "float32[999]" in message
        assert "rank 2" in message


def test_ranks_that_alternate_shapes_in_different_order_are_found():
    net = Net(2)
    for sequence, sizes in enumerate([(8, 8), (9, 9), (8, 9)]):
        for rank in range(2):
            array = np.ones(sizes[rank], np.float32)
            net.submit(
                rank, array, fingerprint=array.size, sequence=sequence, token=sequence
            )
        net.run(0.1)
    for rank in range(2):
        assert net.done[rank][1][0] == ""
        assert "float32[8]" in net.done[rank][2][0]
        assert "float32[9]" in net.done[rank][2][0]


@pytest.mark.parametrize("drop", [False, True])
def test_ranks_that_wait_in_calls_of_different_names_are_named(drop):
    net = Net(2, mismatch_timeout_s=1.0)
    for token in range(40):
        for rank, name in enumerate(["grads", "loss"]):
            array = np.ones(10, np.float32)
            net.submit(rank, array, name=name, sequence=token, token=token, drop=drop)
        net.run(0.3)
        if not drop:
            net.run(3.0)
            break
    messages = [done[0] for done in net.done[0].values() if done[0]]
    assert messages, "rank 0 was never told"
    assert "grads" in messages[0]
    assert "loss" in messages[0]
    assert [done[0] for done in net.done[1].values() if done[0]]


def test_one_call_more_on_one_rank_ends_with_an_error_when_the_other_moves_on():
    net = Net(2, mismatch_timeout_s=1.0)
    for rank in range(2):
        net.submit(rank, np.ones(10, np.float32))
    net.run(0.1)
    net.submit(0, np.ones(10, np.float32), sequence=1, token=1)
    net.submit(1, np.ones(10, np.float32), name="other", token=1)
    net.run(5.0)
    for rank in range(2):
        assert "call 1 of x" in net.done[rank][1][0]
        assert "call 0 of other" in net.done[rank][1][0]


def test_drop_ends_in_time_without_a_rank_and_scales_by_those_that_came():
    net = Net(4)
    net.silent = {3}
    arrays = [np.full(4000, 1.0 + rank, np.float32) for rank in range(4)]
    for rank in range(3):
        net.submit(rank, arrays[rank], drop=True)
    start = net.now
    net.run(0.1)
    for rank in range(3):
        message, missing_contributions, missing_results, slowest = net.done[rank][0]
        assert message == ""
        assert missing_contributions == pytest.approx(0.25)
        assert missing_results == pytest.approx(0.25)
        assert slowest == 3
        np.testing.assert_allclose(arrays[rank][:3000], 6.0 * 4 / 3)
        np.testing.assert_array_equal(arrays[rank][3000:], 0.0)
    assert net.now - start <= 0.1 + 1e-9


def test_drop_does_not_wait_for_what_was_lost_once_the_last_segments_are_there():
    net = Net(2)
    # The first calls measure how long a whole one takes, and repair what is lost.
    measured = 20
    for sequence in range(measured + 1):
        arrays = [np.full(4000, 1.0 + rank, np.float32) for rank in range(2)]
        for rank, array in enumerate(arrays):
            net.submit(rank, array, drop=True, sequence=sequence, token=sequence)
        while sequence < measured and len(net.done[0]) + len(net.done[1]) < 2:
            net.run(0.001)
        if sequence < measured:
            net.done[0].clear()
            net.done[1].clear()
    net.collect()
    # The first contribution to each shard is lost, and no datagram after it.
    contribution = 1
    for receiver in range(2):
        lost = next(
            (to, datagram)
            for to, datagram in net.wire
            if to == receiver and datagram[0] & 0xF == contribution
        )
        net.wire.remove(lost)
    start = net.now
    while len(net.done[0]) + len(net.done[1]) < 2:
        net.run(0.001)
    assert net.now - start < 0.02, "a fifth of the deadline"
    for rank in range(2):
        done = net.done[rank][measured]
        message, missing_contributions, missing_results, _ = done
        assert message == ""
        assert 0 < missing_contributions < 0.5
        assert missing_results == 0


def test_a_call_number_that_does_not_grow_is_refused_with_a_hint():
    net = Net(2)
    for rank in range(2):
        net.submit(rank, np.ones(10, np.float32), sequence=5)
    net.run(0.1)
    message = net.submit(0, np.ones(10, np.float32), sequence=5, token=1)
    assert "growing numbers" in message
    assert "name=" in message


def test_cancel_fails_the_calls_under_way_and_leaves_the_endpoint_usable():
    net = Net(2)
    net.submit(0, np.ones(10, np.float32))
    net.run(0.1)
    net.ranks[0].cancel(net.now, "interrupted")
    net.collect()
    assert net.done[0][0][0] == "interrupted"
    arrays = [np.ones(10, np.float32) for _ in range(2)]
    for rank, array in enumerate(arrays):
        assert net.submit(rank, array, name="next", token=1) == ""
    net.run(0.1)
    np.testing.assert_array_equal(arrays[0], 2)


def test_news_of_a_disagreement_that_is_over_does_not_end_later_calls():
    net = Net(2)
    arrays = [np.ones(10, np.float32) for _ in range(4)]
    for rank in range(2):
        net.submit(rank, arrays[rank], fingerprint=rank)
    went_on = set()
    while len(went_on) < 2:
        net.collect()
        for rank in range(2):
            if 0 in net.done[rank] and rank not in went_on:
                assert "the ranks disagree" in net.done[rank][0][0]
                net.submit(rank, arrays[2 + rank], name="later", token=1)
                went_on.add(rank)
        # One at a time: what each tells of its error is still under way.
        if len(went_on) < 2:
            to, datagram = net.wire.pop(0)
            net.ranks[to].handle_datagram(net.now, datagram)
    net.run(1.0)
    for rank in range(2):
        assert net.done[rank][1][0] == ""
