"""An all_gather that drops late data: whom it waits for, and what becomes of the rest.

The ranks of each test form two clusters of two, and one of each may be missing.
"""

import numpy as np
import pytest
from session import Recorded, Session

import optireduce_testing as native

CLUSTERS = (0, 0, 1, 1)

# A datagram of the second stage, and one about a call.
_RESULT, _ANNOUNCEMENT = 2, 4

# Deadline of a call, in seconds; see `native.Collective`.
DEADLINE_S = 0.1


def _session(kind=Session, *, clusters=CLUSTERS, entries=100, **options):
    return kind(
        len(clusters),
        "lossy",
        operation="all_gather",
        elements=entries * len(clusters),
        clusters=clusters,
        spare=1,
        **options,
    )


def _blocks(session, rank, sequence=0):
    return session.buckets[rank, sequence].reshape(len(session.ranks), -1)


def _expected(values):
    return np.repeat(values, 100).reshape(len(values), 100)


@pytest.mark.parametrize("late", [[], [1], [3], [0, 2], [1, 3]])
def test_a_call_ends_without_the_spare_ranks_of_each_cluster(late):
    session = _session()
    here = [rank for rank in range(4) if rank not in late]
    for rank in here:
        session.call(rank)
    session.run(0.001)
    for rank in here:
        assert session.done[rank][0].error == ""
        found = _blocks(session, rank)
        for source in here:
            # Its block may be a spare one, if it came after the others.
            assert set(found[source]) in ({1 + source}, {0})
        for source in late:
            assert not found[source].any()
        for cluster in ([0, 1], [2, 3]):
            assert found[cluster].all(axis=1).any()
    assert sum(session.expired(rank) for rank in range(4)) == 0


def test_a_call_waits_for_a_cluster_that_is_missing_until_the_deadline():
    session = _session()
    session.call(0)
    session.call(2)
    session.silent = {2, 3}
    session.run(0.9 * DEADLINE_S / 2)
    assert not session.done[0]
    session.run(DEADLINE_S)
    assert session.done[0][0].error == ""
    assert (_blocks(session, 0) == _expected([1, 0, 0, 0])).all()


def test_a_late_block_is_dropped_and_never_joins_a_later_call():
    session = _session(Recorded)
    session.holds = lambda header, _to: header.source == 3 and header.sequence == 0
    for rank in range(4):
        session.call(rank)
    session.run(0.01)
    assert [set(done) for done in session.done] == [{0}] * 4
    session.release()
    session.run(0.01)
    for rank in range(4):
        session.call(rank, 1)
    session.run(0.2)
    for rank in range(3):
        assert not _blocks(session, rank)[3].any()
        assert set(_blocks(session, rank, 1)[3]) in ({14.0}, {0.0})


def test_a_late_program_gets_all_that_has_come():
    session = _session()
    for rank in range(3):
        session.call(rank)
    session.run(0.01)
    session.call(3)
    session.run(0)
    assert session.done[3][0].error == ""
    assert (_blocks(session, 3) == _expected([1, 2, 3, 4])).all()


def test_losses_are_repaired_before_the_deadline():
    session = _session(clusters=(0, 0, 0))
    session.quorum = ([0, 0, 0], 0)
    lost = set()

    def loses_the_first(header, to):
        if header.kind != _RESULT or (header.source, to) in lost:
            return False
        lost.add((header.source, to))
        return True

    session.holds = loses_the_first
    for rank in range(3):
        session.call(rank)
    session.run(DEADLINE_S / 4)
    assert len(lost) == 6
    for rank in range(3):
        assert (_blocks(session, rank) == _expected([1, 2, 3])).all()


def test_calls_do_not_wait_for_dead_ranks_beyond_the_spare_ones():
    session = _session()
    for rank in range(4):
        session.call(rank)
    session.run(0.01)
    session.silent = {2, 3}
    for sequence in range(1, 5):
        session.call(0, sequence)
        session.call(1, sequence)
        session.run(2 * DEADLINE_S)
    assert session.expired(0) == 3
    session.call(0, 5)
    session.call(1, 5)
    session.run(0.01)
    assert (_blocks(session, 0, 5) == _expected([51, 52, 0, 0])).all()
    # The spare rank of the other cluster need not come either.
    session.call(0, 6)
    session.run(0.01)
    assert (_blocks(session, 0, 6) == _expected([61, 0, 0, 0])).all()
    assert 6 in session.done[0]


def test_all_memory_is_free_after_the_deadline():
    session = _session()
    for rank in (0, 2):
        session.call(rank)
    session.run(2 * DEADLINE_S)
    for rank in (1, 3):
        session.call(rank)
    session.run(2 * DEADLINE_S)
    assert [endpoint.memory_bytes() for endpoint in session.ranks] == [0] * 4


def test_ranks_that_are_behind_together_pass_the_calls_of_the_others():
    session = _session()
    for sequence in range(8):
        for rank in (0, 2):
            session.call(rank, sequence)
        session.run(0.01)
    # Both late ranks make the missed calls one by one, and wait for no deadline.
    for sequence in range(6):
        for rank in (1, 3):
            session.call(rank, sequence)
        session.run(0.01)
        assert all(sequence in session.done[rank] for rank in (1, 3))


def test_a_rank_behind_passes_calls_of_others_whose_data_comes_in_another_order():
    session = _session(Recorded, clusters=(0, 0, 0, 0))
    for sequence in range(8):
        for rank in (1, 2, 3):
            session.call(rank, sequence)
        session.run(0.001)
    # The others wait for rank 0 in the next call: they send nothing more before that.
    session.silent = {3}
    for rank in (1, 2):
        session.call(rank, 8)
    session.run(0.001)
    session.hold(_RESULT, to=0)
    session.call(0)
    session.run(0)
    session.held.sort(key=lambda item: -native.parse_header(item[1]).sequence)
    session.release()
    session.run(0.001)
    for sequence in range(1, 9):
        session.call(0, sequence)
        session.run(0.001)
        assert sequence in session.done[0]
    assert all(8 in session.done[rank] for rank in (1, 2))


@pytest.mark.parametrize("first", [0, 1, 4])
def test_a_rank_behind_passes_calls_that_are_over_if_the_others_make_no_more(first):
    session = _session(Recorded, entries=1000)
    for sequence in range(12):
        for rank in range(3 if sequence >= first else 4):
            session.call(rank, sequence)
        session.run(0.01)
    # The others have released all blocks, and send nothing of their own accord.
    session.run(2 * DEADLINE_S)
    session.sent.clear()
    for sequence in range(first, 12):
        session.call(3, sequence)
        session.run(DEADLINE_S / 20)
        assert sequence in session.done[3]
        # A block has several segments.
        answers = [len(session.of(rank, _ANNOUNCEMENT, sequence)) for rank in range(3)]
        assert max(answers) <= 1


def test_a_rank_behind_sends_no_blocks_of_calls_that_the_others_are_past():
    session = _session(Recorded)
    for sequence in range(8):
        for rank in (0, 1, 2):
            session.call(rank, sequence)
        session.run(0.01)
    for sequence in range(8):
        session.call(3, sequence)
        session.run(0.001)
    sent = [len(session.of(3, _RESULT, sequence)) for sequence in range(8)]
    # It learns with its first calls that the others are past them.
    assert sent[2:6] == [0, 0, 0, 0]


def test_blocks_for_a_rank_far_behind_take_no_memory():
    session = _session()
    used = []
    for sequence in range(12):
        for rank in (0, 1, 2):
            session.call(rank, sequence)
        session.run(0.001)
        used.append(session.ranks[0].memory_bytes())
    assert used[-1] == used[-5] > 0
