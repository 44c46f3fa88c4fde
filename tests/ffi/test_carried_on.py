"""Bounded calls that are not made together: folded, jumped over, drained, in a row.

What one of them misses comes with a later one. Acknowledgements may be lost.
"""

import numpy as np
import pytest
from endpoints import Net
from test_promises import CONTRIBUTION, DEADLINE_S, JUST_S, RESULT, Modes

from jax_optireduce import _testing

ACKNOWLEDGEMENT = 3
SETTLED_S = 2.0


class Calls(Modes):
    """Counts what each rank gives and gets; loses what `loses(kind, source, call)`."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.loses = lambda *_: False

    def collect(self):
        super().collect()
        self.wire = [sent for sent in self.wire if not self.loses(*facts(sent[1]))]

    def given(self):
        """What all contributions add up to."""
        return sum(1 + rank + 10 * call for rank, call in self.buckets)

    def got(self, rank):
        return sum(
            bucket for (owner, _), bucket in self.buckets.items() if owner == rank
        )

    def drain_all(self, sequence):
        """All that was late is there, and is what was given."""
        given = self.given()
        for rank in range(len(self.ranks)):
            self.call(rank, sequence, drain=True)
        self.run(SETTLED_S)
        for rank in range(len(self.ranks)):
            assert self.done[rank][sequence][0] == ""
            np.testing.assert_array_equal(self.got(rank), given)


def facts(datagram):
    kind, _, source, _, _, sequence, *_ = _testing.parse_header(datagram)
    return kind, source, sequence


def missing_results(net: Net, rank: int, sequence: int) -> float:
    return net.done[rank][sequence][2]


# ---- Drains.


def test_a_call_that_all_others_have_drained_is_over_at_once():
    net = Calls(3)
    for rank in range(3):
        net.call(rank)
    net.run(0.01)
    for rank in (0, 1):
        net.call(rank, 2, drain=True)
    net.run(0.01)
    net.call(2, 1)
    net.collect()
    assert 1 in net.done[2]
    net.call(2, 2, drain=True)
    net.run(SETTLED_S)
    given = 1 + 2 + 3 + (1 + 2 + 10)
    for rank in range(3):
        np.testing.assert_array_equal(net.got(rank), given)


def test_a_call_goes_on_that_only_some_have_drained():
    net = Calls(3)
    for rank in range(3):
        net.call(rank)
    net.run(0.01)
    net.call(0, 2, drain=True)
    net.run(0.01)
    net.call(2, 1)
    net.run(0.01)
    assert 1 not in net.done[2]
    net.call(1, 1)
    net.run(DEADLINE_S)
    # Their own shards have both contributions.
    for rank in (1, 2):
        assert missing_results(net, rank, 1) == pytest.approx(1 / 3)
        assert np.count_nonzero(net.buckets[rank, 1] == 12 + 13) == 200
    for rank in (1, 2):
        net.call(rank, 2, drain=True)
    net.run(SETTLED_S)
    for rank in range(3):
        np.testing.assert_array_equal(net.got(rank), 1 + 2 + 3 + 12 + 13)


# ---- The end of a rank.


def test_what_a_rank_has_sent_before_it_left_counts():
    net = Calls(2, elements=3000)
    passed = []

    def loses(kind, source, call):
        if (kind, source) != (CONTRIBUTION, 1):
            return False
        passed.append(call)
        return len(passed) > 1

    net.loses = loses
    for rank in range(2):
        net.call(rank)
    net.run(0.005)
    net.ranks[1].leave(net.now, "its program has ended")
    net.run(0.01)
    assert net.ranks[1].finished()
    net.run(DEADLINE_S)
    message, missing_contributions, missing_results, _ = net.done[0][0]
    assert message == ""
    assert 0 < missing_contributions < 0.5
    assert missing_results == 0


# ---- Folded calls.


def fall_behind(calls: int, **options) -> Calls:
    """Rank 0 makes so many calls, and rank 1, which is not waited for, none."""
    net = Calls(2, suspend_on_lag=True, **options)
    for sequence in range(calls):
        net.call(0, sequence)
        net.run(2 * DEADLINE_S)
    return net


def test_the_oldest_of_the_calls_ahead_is_folded():
    net = fall_behind(5)
    for sequence in range(5):
        net.call(1, sequence)
    net.collect()
    # Of max_lag calls the results are kept.
    assert [missing_results(net, 1, call) for call in range(5)] == [1, 1, 1, 0, 0]
    net.run(SETTLED_S)
    net.drain_all(5)


def test_calls_that_are_over_leave_room_for_those_that_come():
    net = Calls(3, suspend_on_lag=True)
    # Rank 1 does not take what the others have for it.
    net.silent = {1}
    for sequence in range(4):
        net.call(0, sequence)
        net.run(2 * DEADLINE_S)
    for sequence in range(4):
        net.call(2, sequence)
    net.run(2 * DEADLINE_S)
    assert sorted(net.done[2]) == [0, 1, 2, 3]
    net.call(0, 4)
    net.run(0.01)
    assert net.ranks[2].counters()["rejected_early"] == 0


def test_results_of_a_folded_call_that_are_under_way_are_not_taken_for_complete():
    net = Calls(2, suspend_on_lag=True)
    # What rank 0 has summed in the first call does not come.
    net.loses = lambda kind, source, call: (kind, source, call) == (RESULT, 0, 0)
    for sequence in range(3):
        net.call(0, sequence)
        net.run(2 * DEADLINE_S)
    for sequence in range(4):
        net.call(1, sequence)
    net.call(0, 3)
    net.run(2 * DEADLINE_S)
    net.loses = lambda *_: False
    net.drain_all(4)


def test_results_of_a_call_that_was_never_opened_are_not_taken_for_complete():
    net = Calls(3, suspend_on_lag=True)
    for rank in range(3):
        net.call(rank)
    net.run(0.01)
    # Of the next call nothing comes, and rank 2 jumps over it.
    net.loses = lambda *facts: facts[-1] == 1
    net.call(0, 1)
    net.run(2 * DEADLINE_S)
    net.call(0, 2)
    net.call(2, 2)
    net.run(2 * DEADLINE_S)
    net.call(0, 3)
    net.call(2, 3)
    net.call(2, 4)
    net.run(0.001)
    # Rank 1 has folded call 2.
    for sequence in (1, 2, 3):
        net.call(1, sequence)
    net.collect()
    assert sorted(net.done[1]) == [0, 1, 2]
    net.run(2 * DEADLINE_S)
    net.loses = lambda *_: False
    for rank in (0, 1):
        net.call(rank, 4)
    net.drain_all(5)


# ---- Calls in a row.


def test_results_of_a_call_under_way_are_not_taken_for_complete():
    net = Calls(2)
    for rank in range(2):
        net.call(rank)
    net.run(0.01)
    net.loses = lambda kind, source, call: (kind, source, call) == (RESULT, 1, 1)
    for sequence in (1, 2):
        for rank in range(2):
            net.call(rank, sequence)
    net.run(2 * DEADLINE_S)
    net.loses = lambda *_: False
    net.drain_all(3)


def test_what_a_program_jumps_over_comes_with_its_next_calls():
    net = Calls(2)
    for rank in range(2):
        net.call(rank)
    net.run(0.01)
    net.call(0, 1)
    net.run(2 * DEADLINE_S)
    for sequence in (2, 3):
        for rank in range(2):
            net.call(rank, sequence)
        net.run(2 * DEADLINE_S)
    for rank in range(2):
        np.testing.assert_array_equal(net.got(rank), net.given())
    memory = net.ranks[1].memory_bytes()
    assert memory == net.ranks[0].memory_bytes()


@pytest.mark.parametrize("mode", ["exact", "agreed", "bounded"])
def test_calls_go_on_although_every_acknowledgement_is_lost(mode):
    net = Calls(2, mode, max_lag=1)
    net.loses = lambda kind, *_: kind == ACKNOWLEDGEMENT
    most = 0
    for sequence in range(8):
        for rank in range(2):
            net.call(rank, sequence)
        # No time passes: each call shows what has come of the one before.
        net.run(0.0)
        assert [len(done) for done in net.done] == [sequence + 1] * 2
        assert all(
            np.all(net.buckets[r, sequence] == 3 + 20 * sequence) for r in (0, 1)
        )
        most = max(most, *(rank.memory_bytes() for rank in net.ranks))
    # The sums of the last calls, of half a bucket each.
    assert most <= 3 * net.elements // 2 * 4


def test_calls_that_wait_for_a_window_go_on_with_the_results_of_an_earlier_one():
    net = Calls(2, "agreed", max_lag=1)
    net.loses = lambda kind, *_: kind == ACKNOWLEDGEMENT
    for sequence in range(4):
        for rank in range(2):
            net.call(rank, sequence)
    net.run(0.0)
    assert [sorted(done) for done in net.done] == [[0, 1, 2, 3]] * 2


def test_a_rank_that_has_caught_up_is_waited_for_again():
    net = Calls(2, max_lag=1, peer_timeout_s=2.0)
    for sequence in range(3):
        net.call(0, sequence)
        net.run(DEADLINE_S + JUST_S)
    net.run(2.0)
    # It was waited for in vain.
    assert sorted(net.done[0]) == [0, 1, 2]
    for sequence in range(4):
        net.call(1, sequence)
    net.call(0, 3)
    net.run(SETTLED_S)
    for sequence in (4, 5):
        for rank in range(2):
            net.call(rank, sequence)
        net.run(DEADLINE_S)
    for sequence in (6, 7, 8):
        net.call(0, sequence)
        net.run(DEADLINE_S + JUST_S)
    assert 7 in net.done[0]
    assert 8 not in net.done[0]
