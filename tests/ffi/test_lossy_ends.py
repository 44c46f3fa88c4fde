"""Lossy calls: the ends of their stages, their measurements, their abandoned data."""

import pytest
from session import Recorded

import optireduce_testing as native

CONTRIBUTION, RESULT = 1, 2
DEADLINE_S = 0.1  # both stages together
JUST_S = 1e-6
# Source: kCalibrationCalls of ffi/protocol/deadline/early_exit.cc is 20.
MEASURED_CALLS = 22


def calibrated(ranks: int, elements: int = 300) -> Recorded:
    """Ranks that have measured the duration of a call."""
    session = Recorded(ranks, "lossy", elements=elements)
    for sequence in range(MEASURED_CALLS):
        for rank in range(ranks):
            session.call(rank, sequence)
        session.run(0.01)
        assert all(sequence in done for done in session.done)
    return session


def nothing_is_missing(session, sequence) -> bool:
    ends = [done[sequence] for done in session.done]
    missing = [(end.missing_contributions, end.missing_results) for end in ends]
    return all(end.error == "" for end in ends) and set(missing) == {(0, 0)}


def test_a_stage_does_not_end_before_the_last_contributions_of_a_rank_that_is_late():
    session = calibrated(3)
    last = MEASURED_CALLS
    session.call(0, last)
    session.call(1, last)
    session.run(DEADLINE_S / 4)
    assert all(last not in done for done in session.done)
    session.call(2, last)
    session.run(DEADLINE_S)
    assert nothing_is_missing(session, last)


def test_a_call_does_not_end_before_the_last_results_of_a_rank_that_is_late():
    session = calibrated(3)
    last = MEASURED_CALLS
    session.hold(RESULT, 2)
    for rank in range(3):
        session.call(rank, last)
    session.run(DEADLINE_S / 4)
    assert last not in session.done[0]
    assert last in session.done[2]
    session.release()
    session.run(DEADLINE_S)
    assert nothing_is_missing(session, last)


def test_what_is_lost_is_not_sent_again_once_the_time_of_a_call_is_known():
    session = calibrated(2, elements=2 * 100 * 358)
    last = MEASURED_CALLS
    before = session.ranks[0].counters()
    session.call(0, last)
    session.collect()
    lost = next(sent for sent in session.wire if sent[1][0] & 0xF == CONTRIBUTION)
    session.wire.remove(lost)
    # The program of rank 1 has not called, and its shard waits for the call.
    session.run(DEADLINE_S / 4)
    after = session.ranks[0].counters()
    assert after["segments_abandoned"] - before["segments_abandoned"] == 1
    assert after["segments_retransmitted"] == before["segments_retransmitted"]
    segments = [header.segment for header in session.of(0, CONTRIBUTION, last)]
    assert len(segments) == len(set(segments)) == 100


def test_a_rank_that_has_measured_repairs_the_loss_of_one_that_measures():
    session = Recorded(2, "lossy", elements=2 * 100 * 358)
    last = MEASURED_CALLS
    for sequence in range(last):
        session.call(0, sequence)
        session.run(2 * DEADLINE_S)
    # Its data tells that it measures.
    session.call(1, last)
    session.run(DEADLINE_S / 10)
    session.call(0, last)
    session.collect()
    lost = next(sent for sent in session.wire if sent[1][0] & 0xF == CONTRIBUTION)
    session.wire.remove(lost)
    session.run(DEADLINE_S)
    assert session.ranks[0].counters()["segments_retransmitted"] == 1
    assert session.done[1][last].missing_contributions == 0


def test_a_rank_that_comes_after_its_stage_has_closed_sends_no_contributions():
    session = Recorded(2, "lossy")
    # Otherwise it would know that rank 1 has closed its stage, too.
    session.hold(RESULT, 1, to=0)
    session.call(1)
    session.run(DEADLINE_S / 2 + JUST_S)
    session.call(0)
    session.run(DEADLINE_S)
    assert session.of(1, CONTRIBUTION, 0)
    assert not session.of(0, CONTRIBUTION, 0)


def test_stages_are_measured_from_the_opening_and_each_by_itself():
    session = Recorded(2, "lossy", elements=10 * 358)
    late = 0.03
    session.call(1)
    session.run(late)
    session.call(0)
    session.run(0.01)
    for rank in range(2):
        session.call(rank, 1)
    session.run(0.01)
    told = [
        # Source: wire.h: even ones describe the first stage, odd ones the second.
        (
            (header.sequence + header.segment) % 2,
            native.decode_duration(header.note),
        )
        for header in session.of(0, CONTRIBUTION, 1)
    ]
    assert {stage for stage, _ in told} == {0, 1}
    for stage, nanoseconds in told:
        if stage == 0:
            assert nanoseconds == pytest.approx(late * 1e9, rel=0.1)
        else:
            assert nanoseconds < late * 1e9 / 10


def test_what_comes_after_the_end_of_a_call_that_was_not_made_takes_no_memory():
    contributions_bytes = 2 * 100 * 4
    session = Recorded(3, "lossy", early_bytes_max=contributions_bytes)
    session.hold(RESULT, to=2)
    session.call(0)
    session.call(1)
    session.run(DEADLINE_S + JUST_S)
    assert session.held
    before = session.ranks[2].counters()["segments_late"]
    session.release()
    session.run(0.001)
    assert session.ranks[2].counters()["segments_late"] > before
    assert session.ranks[2].memory_bytes() <= contributions_bytes
