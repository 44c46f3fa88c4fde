"""Endpoints in virtual time: their refusals, and the ends of calls."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from session import SECRET, Recorded, Session, rejected

import optireduce_testing as native

CONTRIBUTION = 1


def test_what_waits_for_room_asks_for_it_without_waiting_for_anything():
    # A part of the first window has fewer datagrams than an acknowledgement.
    session = Session(2, receive_buffer_bytes=200_000)
    bucket = np.ones(200_000, np.float32)
    session.submit(0, bucket)
    session.collect()
    # A window of a few datagrams is full, at one instant.
    counters = session.ranks[0].counters()
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
    session = Session(world_size)
    for rank, array in enumerate(arrays):
        assert session.submit(rank, array) == ""
    session.run()
    for rank, array in enumerate(arrays):
        assert session.done[rank][0].error == ""
        np.testing.assert_array_equal(array, sum(inputs))
    assert all(endpoint.memory_bytes() == 0 for endpoint in session.ranks)


def datagrams_of(wire_format: str, loss: float) -> int:
    """Datagrams that 2 ranks send in a call with the right sums."""
    session = Session(2, elements=30_000, wire_format=wire_format)
    lost = np.random.default_rng(1)
    session.holds = lambda _header, _to: lost.random() < loss
    rng = np.random.default_rng(2)
    values = rng.normal(size=(2, session.elements)).astype(np.float32)
    for rank in range(2):
        session.call(rank, values=values[rank])
    session.run()
    sums = [session.buckets[rank, 0] for rank in range(2)]
    np.testing.assert_array_equal(*sums)
    np.testing.assert_allclose(sums[0], values.sum(0), atol=0.2)
    assert rejected(session.ranks[0]) == rejected(session.ranks[1]) == {}
    return sum(endpoint.counters()["datagrams_sent"] for endpoint in session.ranks)


def test_rounded_segments_share_datagrams():
    whole = datagrams_of("float32", loss=0)
    assert datagrams_of("bfloat16", loss=0) < 0.65 * whole
    assert datagrams_of("int8", loss=0) < 0.5 * whole
    # A lost one costs several segments, each of which then has its own.
    assert datagrams_of("int8", loss=0.2) < datagrams_of("float32", loss=0.2)


@pytest.mark.parametrize(("mode", "segments"), [("exact", 16), ("lossy", 45)])
def test_segments_of_long_datagrams_divide_a_shard(mode, segments):
    session = Recorded(2, mode, elements=200_000, datagram_bytes_max=65_504)
    for rank in range(2):
        session.call(rank)
    session.run()
    for rank in range(2):
        assert session.done[rank][0].error == ""
        np.testing.assert_array_equal(session.buckets[rank, 0], 3)
    assert (
        len({header.segment for header in session.of(0, CONTRIBUTION, 0)}) == segments
    )


def one_datagram(session: Session) -> tuple[int, bytes]:
    session.submit(0, np.ones(10, np.float32))
    session.collect()
    return session.wire.pop()


@pytest.mark.parametrize(
    ("harm", "counter"),
    [
        (lambda d: d[:39], "rejected_malformed"),
        (lambda d: d[:0], "rejected_malformed"),
        (lambda d: bytes([d[0] ^ 0xF0]) + d[1:], "rejected_version"),
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
    session = Session(2)
    to, datagram = one_datagram(session)
    endpoint = session.ranks[to]
    endpoint.handle_datagram(session.now, harm(datagram))
    assert rejected(endpoint) == {counter: 1}
    assert endpoint.poll_transmit(session.now, 8) is None, "it must not be answered"
    assert endpoint.memory_bytes() == 0


def test_a_repeated_datagram_is_counted_and_has_no_effect():
    session = Session(2)
    arrays = [np.ones(10, np.float32), np.ones(10, np.float32)]
    for rank, array in enumerate(arrays):
        session.submit(rank, array)
    session.collect()
    recorded = list(session.wire)
    session.run()
    for to, datagram in recorded * 2:
        session.ranks[to].handle_datagram(session.now, datagram)
    session.run()
    np.testing.assert_array_equal(arrays[0], 2)
    for endpoint in session.ranks:
        assert rejected(endpoint)["rejected_replayed"] > 0
        assert set(rejected(endpoint)) == {"rejected_replayed"}


@pytest.mark.parametrize("protection", ["none", "authenticate", "encrypt"])
def test_every_protection_gives_the_sum_in_datagrams_of_one_size(protection):
    session = Session(2, protection=protection)
    arrays = [np.full(100, 7, np.float32), np.full(100, 9, np.float32)]
    for rank, array in enumerate(arrays):
        session.submit(rank, array)
    session.collect()
    sent = [datagram for _, datagram in session.wire]
    session.run()
    for array in arrays:
        np.testing.assert_array_equal(array, 16)
    assert max(len(datagram) for datagram in sent) == 40 + 200
    # No data of the program is readable in encrypted datagrams, least of all values.
    secret_texts = [np.float32(7).tobytes() * 2, b"float32"]
    for text in secret_texts:
        assert any(text in d for d in sent) == (protection != "encrypt")
    assert all(d[-12:] == bytes(12) for d in sent) == (protection == "none")


@pytest.mark.parametrize(
    "other", [{"protection": "encrypt"}, {"session": 78}, {"lane": 1}], ids=str
)
def test_another_protection_session_or_lane_has_other_keys(other):
    here = native.Endpoint(0, 2, SECRET)
    there = native.Endpoint(1, 2, SECRET, **other)
    array = np.ones(9, np.float32)
    there.submit(0.0, native.Collective("x", members=[0, 1], elements=9), array)
    _, datagrams = there.poll_transmit(0.0, 8)
    session = (77).to_bytes(4, "little")
    here.handle_datagram(0.0, datagrams[0][:4] + session + datagrams[0][8:])
    assert rejected(here) == {"rejected_unauthenticated": 1}


def test_each_direction_has_its_own_key():
    session = Session(3)
    to, datagram = one_datagram(session)
    source = session.ranks[0]
    # To its sender, and with the source of another rank.
    reflected = datagram[:2] + to.to_bytes(2, "little") + datagram[4:]
    source.handle_datagram(session.now, reflected)
    other = 3 - to
    session.ranks[other].handle_datagram(session.now, datagram)
    for endpoint in (source, session.ranks[other]):
        assert rejected(endpoint) == {"rejected_unauthenticated": 1}


def test_no_two_datagrams_of_a_direction_have_one_number():
    session = Session(3)
    rng = np.random.default_rng(1)
    arrays = [np.ones(2000, np.float32) for _ in session.ranks]
    used = set()
    for sequence in range(5):
        for rank, array in enumerate(arrays):
            session.submit(rank, array, sequence=sequence)
        for _ in range(100):
            session.collect()
            for to, datagram in session.wire:
                source = int.from_bytes(datagram[2:4], "little")
                number = int.from_bytes(datagram[20:26], "little")
                assert (source, to, number) not in used
                used.add((source, to, number))
                if rng.random() < 0.7:
                    session.ranks[to].handle_datagram(session.now, datagram)
            session.wire.clear()
            session.now += 0.01
            for endpoint in session.ranks:
                endpoint.handle_timeout(session.now)
    assert all(len(done) == 5 for done in session.done)
    assert len(used) > 100


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=200)
def test_no_mutated_datagram_is_accepted(data):
    session = Session(
        2, protection=data.draw(st.sampled_from(["authenticate", "encrypt"]))
    )
    to, datagram = one_datagram(session)
    mutated = bytearray(datagram)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(
            st.integers(0, 255)
        )
    size = data.draw(st.integers(0, len(mutated)))
    if bytes(mutated[:size]) == datagram:
        return
    session.ranks[to].handle_datagram(session.now, bytes(mutated[:size]))
    assert sum(rejected(session.ranks[to]).values()) == 1
    assert session.ranks[to].counters()["datagrams_received"] == 0


def test_a_silent_rank_is_named_after_the_timeout_and_not_before():
    session = Session(3, peer_timeout_s=2.0)
    session.silent = {2}
    for rank in (0, 1):
        session.submit(rank, np.ones(1000, np.float32))
    session.run(1.9)
    assert session.done[0] == {}
    session.run(0.7)
    for rank in (0, 1):
        message = session.done[rank][0].error
        assert "rank 2 has been silent for more than 2.0 s" in message
        assert "peer_timeout_s" in message
    again = session.submit(0, np.ones(1000, np.float32), sequence=1)
    assert "rank 2" in again


def test_a_rank_that_computes_for_long_is_not_taken_for_dead():
    session = Session(3, peer_timeout_s=1.0)
    arrays = [np.full(1000, rank, np.float32) for rank in range(3)]
    for rank in (0, 1):
        session.submit(rank, arrays[rank])
    session.run(20.0)
    assert session.done == [{}, {}, {}]
    session.submit(2, arrays[2])
    session.run(1.0)
    np.testing.assert_array_equal(arrays[0], 3)
    assert all(done[0].error == "" for done in session.done)


def test_a_rank_that_left_fails_the_calls_that_need_it_at_once():
    session = Session(3)
    for rank in (0, 1):
        session.submit(rank, np.ones(1000, np.float32))
    session.run(0.1)
    session.ranks[2].leave(session.now, "its program has ended")
    session.run(0.1)
    for rank in (0, 1):
        assert "rank 2 has left: its program has ended" in session.done[rank][0].error
    assert session.ranks[2].finished()


def test_a_rank_may_leave_right_after_its_last_call():
    session = Session(3)
    arrays = [np.ones(1000, np.float32) for _ in range(3)]
    for rank, array in enumerate(arrays):
        session.submit(rank, array)
    session.run_until_rank_0_is_done()
    session.ranks[0].leave(session.now, "its program has ended")
    session.run(0.5)
    for rank in range(3):
        assert session.done[rank][0].error == ""
        np.testing.assert_array_equal(arrays[rank], 3)


def test_a_rank_that_leaves_keeps_its_sums_for_a_peer_that_is_cut_off_for_a_while():
    session = Session(2, peer_timeout_s=3.0)
    arrays = [np.ones(1000, np.float32) for _ in range(2)]
    for rank, array in enumerate(arrays):
        session.submit(rank, array)
    session.run_until_rank_0_is_done()
    assert not session.done[1]
    session.wire.clear()
    session.silent = {1}
    session.run(1.0)  # many unanswered probes
    session.ranks[0].leave(session.now, "its program has ended")
    session.run(1.0)
    assert not session.ranks[0].finished()
    session.silent = set()
    session.run(2.0)
    assert session.done[1][0].error == ""
    np.testing.assert_array_equal(arrays[1], 2)
    assert session.ranks[0].finished()


def test_a_rank_that_leaves_does_not_wait_for_one_that_is_given_up():
    session = Session(2, peer_timeout_s=1.0)
    arrays = [np.ones(1000, np.float32) for _ in range(2)]
    for rank, array in enumerate(arrays):
        session.submit(rank, array)
    session.run_until_rank_0_is_done()
    session.silent = {1}
    session.ranks[0].leave(session.now, "its program has ended")
    session.run(2.5)
    assert session.ranks[0].finished()


def test_ranks_that_disagree_on_the_shapes_are_both_named_at_once():
    session = Session(3)
    for rank in range(3):
        size = 1000 if rank < 2 else 999
        session.submit(rank, np.ones(size, np.float32), fingerprint=size)
    session.run(0.1)
    for rank in range(3):
        message = session.done[rank][0].error
        assert "float32[1000]" in message
        assert "float32[999]" in message
        assert "rank 2" in message


def test_ranks_that_alternate_shapes_in_different_order_are_found():
    session = Session(2)
    for sequence, sizes in enumerate([(8, 8), (9, 9), (8, 9)]):
        for rank in range(2):
            array = np.ones(sizes[rank], np.float32)
            session.submit(rank, array, fingerprint=array.size, sequence=sequence)
        session.run(0.1)
    for rank in range(2):
        assert session.done[rank][1].error == ""
        assert "float32[8]" in session.done[rank][2].error
        assert "float32[9]" in session.done[rank][2].error


@pytest.mark.parametrize("mode", ["exact", "lossy"])
def test_ranks_that_wait_in_calls_of_different_names_are_named(mode):
    session = Session(2, mismatch_timeout_s=1.0)
    for token in range(40):
        for rank, name in enumerate(["grads", "loss"]):
            array = np.ones(10, np.float32)
            session.submit(rank, array, name=name, sequence=token, mode=mode)
        session.run(0.3)
        if mode == "exact":
            session.run(3.0)
            break
    messages = [done.error for done in session.done[0].values() if done.error]
    assert messages, "rank 0 was never told"
    assert "grads" in messages[0]
    assert "loss" in messages[0]
    assert [done.error for done in session.done[1].values() if done.error]


def test_one_call_more_on_one_rank_ends_with_an_error_when_the_other_moves_on():
    session = Session(2, mismatch_timeout_s=1.0)
    for rank in range(2):
        session.submit(rank, np.ones(10, np.float32))
    session.run(0.1)
    session.submit(0, np.ones(10, np.float32), sequence=1)
    session.submit(1, np.ones(10, np.float32), name="other", token=1)
    session.run(5.0)
    for rank in range(2):
        assert "call 1 of x" in session.done[rank][1].error
        assert "call 0 of other" in session.done[rank][1].error


def test_drop_ends_in_time_without_a_rank_and_scales_by_those_that_came():
    session = Session(4)
    session.silent = {3}
    arrays = [np.full(4000, 1.0 + rank, np.float32) for rank in range(4)]
    for rank in range(3):
        session.submit(rank, arrays[rank], mode="lossy")
    start = session.now
    session.run(0.1)
    for rank in range(3):
        done = session.done[rank][0]
        assert done.error == ""
        assert done.missing_contributions == pytest.approx(0.25)
        assert done.missing_results == pytest.approx(0.25)
        assert done.slowest == 3
        np.testing.assert_allclose(arrays[rank][:3000], 6.0 * 4 / 3)
        np.testing.assert_array_equal(arrays[rank][3000:], 0.0)
    assert session.now - start <= 0.1 + 1e-9


def test_drop_does_not_wait_for_what_was_lost_once_the_last_segments_are_there():
    session = Session(2)
    # The first calls measure the duration of a whole call, and retransmit lost data.
    measured = 20
    for sequence in range(measured + 1):
        arrays = [np.full(4000, 1.0 + rank, np.float32) for rank in range(2)]
        for rank, array in enumerate(arrays):
            session.submit(rank, array, mode="lossy", sequence=sequence)
        while sequence < measured and len(session.done[0]) + len(session.done[1]) < 2:
            session.run(0.001)
        if sequence < measured:
            session.done[0].clear()
            session.done[1].clear()
    session.collect()
    # The first contribution to each shard is lost, and no datagram after it.
    contribution = 1
    for receiver in range(2):
        lost = next(
            (to, datagram)
            for to, datagram in session.wire
            if to == receiver and datagram[0] & 0xF == contribution
        )
        session.wire.remove(lost)
    start = session.now
    while len(session.done[0]) + len(session.done[1]) < 2:
        session.run(0.001)
    assert session.now - start < 0.02, "a fifth of the deadline"
    for rank in range(2):
        done = session.done[rank][measured]
        assert done.error == ""
        assert 0 < done.missing_contributions < 0.5
        assert done.missing_results == 0


def test_a_call_number_that_does_not_grow_is_refused_with_a_hint():
    session = Session(2)
    for rank in range(2):
        session.submit(rank, np.ones(10, np.float32), sequence=5)
    session.run(0.1)
    message = session.submit(0, np.ones(10, np.float32), sequence=5, token=1)
    assert "growing numbers" in message
    assert "name=" in message


def test_cancel_fails_the_calls_under_way_and_leaves_the_endpoint_usable():
    session = Session(2)
    session.submit(0, np.ones(10, np.float32))
    session.run(0.1)
    session.ranks[0].cancel(session.now, "interrupted")
    session.collect()
    assert session.done[0][0].error == "interrupted"
    arrays = [np.ones(10, np.float32) for _ in range(2)]
    for rank, array in enumerate(arrays):
        assert session.submit(rank, array, name="next", token=1) == ""
    session.run(0.1)
    np.testing.assert_array_equal(arrays[0], 2)


def test_news_of_a_disagreement_that_is_over_does_not_end_later_calls():
    session = Session(2)
    arrays = [np.ones(10, np.float32) for _ in range(4)]
    for rank in range(2):
        session.submit(rank, arrays[rank], fingerprint=rank)
    went_on = set()
    while len(went_on) < 2:
        session.collect()
        for rank in range(2):
            if 0 in session.done[rank] and rank not in went_on:
                assert "the ranks disagree" in session.done[rank][0].error
                session.submit(rank, arrays[2 + rank], name="later", token=1)
                went_on.add(rank)
        # One at a time: the announcements of its error are still under way.
        if len(went_on) < 2:
            to, datagram = session.wire.pop(0)
            session.ranks[to].handle_datagram(session.now, datagram)
    session.run(1.0)
    for rank in range(2):
        assert session.done[rank][1].error == ""
