"""Collectives with one stage: what ends their calls, and what they send."""

import numpy as np
import pytest
from session import Recorded, Session

import optireduce_testing as native

_MODES = pytest.mark.parametrize("mode", ["exact", "bounded", "lossy"])


def _sum_of(session, sequence=0):
    ranks = range(len(session.ranks))
    return sum(1 + rank + 10 * sequence for rank in ranks)


def _part(session, rank, sequence=0):
    each = session.elements // len(session.ranks)
    return session.buckets[rank, sequence][rank * each : (rank + 1) * each]


@_MODES
def test_a_rank_gets_the_sum_of_its_part(mode):
    session = Session(3, mode, operation="reduce_scatter")
    for rank in range(3):
        session.call(rank)
    session.run(0.01)
    for rank in range(3):
        assert session.done[rank][0].error == ""
        assert (_part(session, rank) == _sum_of(session)).all()


def test_a_rank_gets_the_parts_of_all():
    session = Session(3, operation="all_gather")
    for rank in range(3):
        session.call(rank)
    session.run(0.01)
    for rank in range(3):
        assert session.done[rank][0].error == ""
        expected = np.repeat([1, 2, 3], 100)
        assert (session.buckets[rank, 0] == expected).all()


@pytest.mark.parametrize(
    ("operation", "sent", "unsent"),
    [("reduce_scatter", 1, 2), ("all_gather", 2, 1)],
)
def test_one_stage_sends_no_datagram_of_the_other(operation, sent, unsent):
    session = Recorded(3, operation=operation, elements=30_000)
    for rank in range(3):
        session.call(rank)
    session.run(0.1)
    for rank in range(3):
        assert session.of(rank, sent, 0)
        assert not session.of(rank, unsent, 0)


def test_an_exact_scatter_ends_once_its_contributions_have_arrived():
    session = Recorded(2, operation="reduce_scatter")
    session.hold(1, 0)  # the contributions of rank 0
    for rank in range(2):
        session.call(rank)
    session.run(0.1)
    # Rank 0 has its sum, and its memory is still to be read.
    assert not any(session.done)
    session.release()
    session.run(0.1)
    assert [done[0].error for done in session.done] == ["", ""]
    assert (_part(session, 1) == _sum_of(session)).all()


def test_complete_contributions_are_acknowledged_at_once():
    session = Session(2, operation="reduce_scatter")
    for rank in range(2):
        session.call(rank)
    # No time passes on this network: nothing waits for an acknowledgement's timer.
    session.run(0)
    assert [set(done) for done in session.done] == [{0}, {0}]


def test_an_exact_scatter_fails_for_a_silent_rank_that_lacks_its_contributions():
    session = Recorded(2, operation="reduce_scatter", peer_timeout_s=2.0)
    session.hold(1, 0)
    for rank in range(2):
        session.call(rank)
    session.run(0.1)
    session.silent.add(1)
    session.run(3.0)
    # Its own sum is there, and rank 1 would wait for ever.
    assert "rank 1 has been silent" in session.done[0][0].error


def test_an_exact_gather_goes_on_without_a_rank_that_has_left_and_given_its_part():
    session = Recorded(3, operation="all_gather")
    session.hold(2, 2, to=0)  # the part of rank 2
    for rank in range(3):
        session.call(rank)
    session.run(0.1)
    session.ranks[1].leave(session.now, "its program has ended")
    session.run(0.1)
    assert not session.done[0]
    session.release()
    session.run(0.1)
    assert session.done[0][0].error == ""


def test_a_gather_waits_for_the_part_of_a_rank_that_is_past_the_call():
    session = Recorded(2, operation="all_gather", mismatch_timeout_s=1.0)
    session.hold(2, 1)  # the part of rank 1
    # Rank 0 hears that rank 1 makes the call before its own program does.
    session.call(1)
    session.run(0.1)
    session.call(0)
    session.run(0.1)
    assert session.done[1][0].error == ""
    after = np.ones(300, np.float32)
    session.submit(1, after, name="after", fingerprint=2, token=1)
    session.run(3.0)
    assert not session.done[0]
    session.release()
    session.run(0.1)
    assert session.done[0][0].error == ""


def test_a_skipped_scatter_joins_the_next_one():
    session = Session(2, "bounded", operation="reduce_scatter")
    session.call(0)
    session.run(0.2)
    for rank in range(2):
        session.call(rank, 1)
    session.run(0.1)
    assert (_part(session, 1, 1) == _sum_of(session, 1) + 1).all()


def test_a_bounded_scatter_ends_by_its_deadline_and_loses_nothing():
    session = Recorded(2, "bounded", operation="reduce_scatter")
    session.hold(1, 0)
    for rank in range(2):
        session.call(rank)
    session.run(0.2)
    assert [done[0].error for done in session.done] == ["", ""]
    assert (_part(session, 1) == 2).all()
    # The program may use its memory again.
    session.buckets[0, 0][:] = np.nan
    session.release()
    session.run(0.1)
    for rank in range(2):
        session.call(rank, 1, drain=True)
    session.run(0.1)
    assert (_part(session, 1, 1) == 1).all()
    assert not _part(session, 0, 1).any()


def test_a_late_program_gets_all_that_has_come_before_it():
    session = Session(2, "bounded", operation="reduce_scatter")
    session.call(0)
    session.run(1.0)
    # The other one has ended by its deadline; this one has missed nothing.
    assert set(session.done[0]) == {0}
    session.call(1)
    session.run(0.01)
    assert (_part(session, 1) == _sum_of(session)).all()
    assert session.done[1][0].missing_contributions == 0


def test_ranks_with_different_stages_get_an_error_that_names_both():
    session = Session(2)
    session.call(0)
    session.operation = "reduce_scatter"
    session.call(1)
    session.run(0.1)
    for done in session.done:
        assert "the ranks disagree" in done[0].error


def test_a_bucket_that_the_members_do_not_divide_is_refused():
    session = Session(2, operation="reduce_scatter")
    refused = session.submit(0, np.ones(11, np.float32))
    assert "its 11 elements must be divisible by its 2 members" in refused


def test_a_part_of_each_shard_is_on_each_lane():
    parts = native.cut_bucket("x", [4, 8], lanes=2, cut_bytes_min=0, scattered=3)
    assert parts == [
        (0, 6, [(0, 2), (4, 6), (8, 10)]),
        (1, 6, [(2, 4), (6, 8), (10, 12)]),
    ]
