"""Calls that one rank ends, or never makes, and ranks that answer and do not call."""

import numpy as np
import pytest
from endpoints import Net


def ones() -> np.ndarray:
    return np.ones(10, np.float32)


def give_up(net: Net, rank: int, sequence: int, why: str = "interrupted") -> None:
    members = list(range(len(net.ranks)))
    net.ranks[rank].give_up(
        net.now, "x", "x: float32[10]", 1, 10, members, sequence, why
    )


def all_call(net: Net, sequence: int) -> None:
    arrays = [ones() for _ in net.ranks]
    for rank, array in enumerate(arrays):
        assert net.submit(rank, array, sequence=sequence, token=sequence) == ""
    net.run(0.5)
    for rank, array in enumerate(arrays):
        assert net.done[rank][sequence][0] == ""
        np.testing.assert_array_equal(array, len(net.ranks))


@pytest.mark.parametrize("waits_first", [True, False])
def test_a_call_that_a_rank_never_makes_ends_on_the_others(waits_first):
    net = Net(3)
    all_call(net, 0)
    if not waits_first:
        give_up(net, 0, 1)
        net.run(0.1)
    for rank in (1, 2):
        net.submit(rank, ones(), sequence=1, token=1)
    net.run(0.1)
    if waits_first:
        assert 1 not in net.done[1]
        give_up(net, 0, 1)
        net.run(0.1)
    for rank in (1, 2):
        message = net.done[rank][1][0]
        assert "call 1 of x: float32[10] cannot be completed" in message
        assert "rank 0 has stopped with this error: interrupted" in message
    all_call(net, 2)
    assert all(endpoint.memory_bytes() == 0 for endpoint in net.ranks)


def test_a_first_call_that_is_never_made_ends_on_the_others():
    net = Net(2)
    give_up(net, 0, 0)
    net.run(0.1)
    net.submit(1, ones())
    net.run(0.1)
    assert "interrupted" in net.done[1][0][0]
    all_call(net, 1)


def test_a_rank_that_is_hundreds_of_calls_behind_learns_of_each():
    net = Net(2)
    all_call(net, 0)
    count = 300
    for sequence in range(1, count):
        if sequence % 2 == 0:
            give_up(net, 0, sequence)
        else:
            net.submit(0, ones(), sequence=sequence, token=sequence)
            net.ranks[0].cancel(net.now, "interrupted")
        if sequence == count // 2:
            net.run(0.1)
    net.run(0.1)
    sent = net.ranks[0].counters()["datagrams_sent"]
    assert sent < count / 2, "one announcement tells of many calls"
    for sequence in range(1, count):
        net.submit(1, ones(), sequence=sequence, token=sequence)
        assert "interrupted" in (net.done[1] | collected(net))[sequence][0]
    net.run(0.1)
    all_call(net, count)


def collected(net: Net) -> dict[int, tuple]:
    net.collect()
    return net.done[1]


def test_what_is_lost_of_the_news_is_told_again():
    net = Net(2)
    all_call(net, 0)
    give_up(net, 0, 1)
    net.collect()
    net.wire.clear()
    net.submit(1, ones(), sequence=1, token=1)
    net.run(3.0)
    assert "interrupted" in net.done[1][1][0]


def test_a_refused_call_is_told_to_ranks_that_could_have_made_it():
    net = Net(3, peer_timeout_s=1.0)
    all_call(net, 0)
    net.silent = {2}
    for rank in (0, 1):
        net.submit(rank, ones(), sequence=1, token=1)
    net.run(2.0)
    net.silent = set()
    # Rank 0 has given rank 2 up, and refuses; then rank 2 is heard again.
    assert "rank 2" in net.submit(0, ones(), sequence=2, token=2)
    for rank in (1, 2):
        net.submit(rank, ones(), sequence=2, token=2)
    net.run(5.0)
    assert "silent" in net.done[2][2][0]


def test_a_call_number_that_one_rank_jumps_over_is_a_disagreement():
    net = Net(2, mismatch_timeout_s=1.0)
    all_call(net, 0)
    net.submit(1, ones(), sequence=6, token=6)
    net.run(0.1)
    net.submit(0, ones(), sequence=5, token=5)
    net.run(5.0)
    for rank, token in ((0, 5), (1, 6)):
        message = net.done[rank][token][0]
        assert "call 5 of x" in message
        assert "call 6 of x" in message


def test_a_rank_that_answers_and_does_not_call_is_named_after_the_call_timeout():
    net = Net(3, call_timeout_s=20.0, peer_timeout_s=2.0)
    all_call(net, 0)
    for rank in (0, 1):
        net.submit(rank, ones(), sequence=1, token=1)
    net.run(19.9)
    assert all(1 not in done for done in net.done)
    net.run(0.2)
    texts = [net.done[rank][1][0] for rank in (0, 1)]
    assert all(
        "has waited 20.0 s (call_timeout_s) for rank 2" in text for text in texts
    )
    assert any("it last called call 0 of x: float32[10], 20." in text for text in texts)
    # The one that was stuck learns why, and then all go on.
    net.submit(2, ones(), sequence=1, token=1)
    net.run(0.1)
    assert "has waited 20.0 s (call_timeout_s) for rank 2" in net.done[2][1][0]
    all_call(net, 2)


def test_without_a_call_timeout_a_call_waits_for_ever():
    net = Net(2, call_timeout_s=0.0)
    net.submit(0, ones())
    net.run(10_000.0)
    assert net.done[0] == {}


def test_ranks_leave_after_calls_that_followed_a_disagreement():
    net = Net(3, peer_timeout_s=4.0, mismatch_timeout_s=2.0)

    def call(rank, fingerprint, sequence, *, carry):
        net.submit(
            rank,
            np.ones(3000, np.float32),
            fingerprint=fingerprint,
            sequence=sequence,
            token=10 * fingerprint + sequence,
            carry=carry,
        )

    call(0, 1, 0, carry=False)
    # Chosen: one call more than max_lag after the one in which the ranks disagree.
    for sequence in range(4):
        for rank in range(3):
            call(rank, 2, sequence, carry=True)
        net.run(0.0005)
    for rank in net.ranks:
        rank.leave(net.now, "the end")
    net.run(10.0)
    assert all(rank.finished() for rank in net.ranks)
    assert [rank.memory_bytes() for rank in net.ranks] == [0, 0, 0]
