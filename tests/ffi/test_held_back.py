"""What a peer refuses is held back: not sent in vain, and sent when it is taken."""

import numpy as np
from endpoints import Net

from jax_optireduce import _testing

ELEMENTS = 300
SHARD_BYTES = 600
CALLS = 5
# Source: of ffi/protocol/options.h. So many calls are taken, the next one is refused.
MAX_LAG = 2
ACKNOWLEDGEMENT = 3


def ones() -> np.ndarray:
    return np.ones(ELEMENTS, np.float32)


def call(net: Net, rank: int, mode: str, members: list[int], deadline_s=5.0) -> None:
    array = ones()
    net.arrays.append(array)
    refused = net.ranks[rank].submit_in(
        net.now, mode, deadline_s, members, 0, len(net.arrays), array
    )
    assert refused == ""


def test_of_several_calls_ahead_each_is_refused_once():
    net = Net(2)
    for sequence in range(CALLS):
        net.submit(0, ones(), sequence=sequence, token=sequence)
    net.run(20.0)
    assert net.ranks[1].counters()["rejected_early"] == CALLS - MAX_LAG


def run_with_latency(net: Net, seconds: float) -> None:
    """Datagrams take a millisecond."""
    for _ in range(round(seconds * 1000)):
        net.collect()
        arriving, net.wire = net.wire, []
        net.now += 0.001
        for to, datagram in arriving:
            net.ranks[to].handle_datagram(net.now, datagram)
        for rank in net.ranks:
            rank.handle_timeout(net.now)


def test_calls_that_no_list_has_room_for_are_held_back_by_time():
    # An acknowledgement of the smallest datagrams lists some fifty.
    net = Net(2, datagram_bytes_max=548, early_bytes_max=1)
    collectives = 80
    for token in range(collectives):
        net.submit(0, ones(), name=f"x{token}", token=token)
    run_with_latency(net, 1.0)
    before = net.ranks[1].counters()["rejected_early"]
    run_with_latency(net, 1.0)
    # Twice a second, and each is of two datagrams.
    refused = net.ranks[1].counters()["rejected_early"] - before
    assert 0 < refused <= 2 * 2 * collectives
    for token in range(collectives):
        net.submit(1, ones(), name=f"x{token}", token=token)
    run_with_latency(net, 1.0)
    assert [len(done) for done in net.done] == [collectives] * 2


def test_an_older_list_does_not_hold_back_what_is_taken_by_now():
    net = Net(2, early_bytes_max=1)
    net.submit(0, ones())
    net.collect()
    for to, datagram in net.wire:
        net.ranks[to].handle_datagram(net.now, datagram)
    net.wire.clear()
    net.collect()
    older = [
        sent
        for sent in net.wire
        if _testing.parse_header(sent[1])[0] == ACKNOWLEDGEMENT
    ]
    assert [to for to, _ in older] == [0]
    net.wire.clear()
    # Rank 1 makes the call. What says so overtakes the list that refused it.
    net.submit(1, ones())
    net.collect()
    for to, datagram in net.wire + older:
        net.ranks[to].handle_datagram(net.now, datagram)
    net.wire.clear()
    net.run(0.0)
    assert sorted(net.done[0]) == sorted(net.done[1]) == [0]


def test_a_peer_that_refuses_is_asked_whether_it_still_does():
    net = Net(3, early_bytes_max=SHARD_BYTES)
    # What rank 2 has for rank 1 takes all its memory for calls that it has not made.
    call(net, 2, "exact", [1, 2])
    net.run(0.1)
    call(net, 0, "bounded", [0, 1])
    net.run(0.1)
    assert net.ranks[1].counters()["rejected_early"] > 0
    call(net, 1, "exact", [1, 2])
    # That there is room again does not get to rank 0.
    for _ in range(10):
        net.collect()
        for to, datagram in net.wire:
            if to != 0:
                net.ranks[to].handle_datagram(net.now, datagram)
        net.wire.clear()
        net.now += 0.001
        for rank in net.ranks:
            rank.handle_timeout(net.now)
    assert net.ranks[1].memory_bytes() == 0
    net.run(1.0)
    assert net.ranks[1].memory_bytes() == SHARD_BYTES


def test_a_peer_that_gives_up_several_calls_ends_all_of_them_at_once():
    net = Net(2)
    for rank in range(2):
        net.submit(rank, ones())
    net.run(0.1)
    for sequence in range(1, 4):
        net.submit(1, ones(), sequence=sequence, token=sequence)
    net.run(0.0)
    spec = ("x", f"x: float32[{ELEMENTS}]", 1, ELEMENTS, [0, 1])
    for sequence in range(1, 4):
        net.ranks[0].give_up(net.now, *spec, sequence, "interrupted")
    net.run(0.0)
    assert sorted(net.done[1]) == [0, 1, 2, 3]
    assert all("interrupted" in net.done[1][call][0] for call in (1, 2, 3))
