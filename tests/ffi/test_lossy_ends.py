"""Lossy calls: when their stages end, what they measure, what they do not send."""

import pytest
from endpoints import DEADLINE_S, JUST_S, Recorded

from jax_optireduce import _testing

CONTRIBUTION, RESULT = 1, 2
# Source: kCalibrationCalls of ffi/protocol/deadline/early_exit.cc is 20.
MEASURED_CALLS = 22


def calibrated(ranks: int, elements: int = 300) -> Recorded:
    """Ranks that have measured how long a call takes."""
    net = Recorded(ranks, "lossy", elements=elements)
    for sequence in range(MEASURED_CALLS):
        for rank in range(ranks):
            net.call(rank, sequence)
        net.run(0.01)
        assert all(sequence in done for done in net.done)
    return net


def nothing_is_missing(net, sequence) -> bool:
    return all(done[sequence][:3] == ("", 0, 0) for done in net.done)


def test_a_stage_does_not_end_before_the_last_contributions_of_a_rank_that_is_late():
    net = calibrated(3)
    last = MEASURED_CALLS
    net.call(0, last)
    net.call(1, last)
    net.run(DEADLINE_S / 4)
    assert all(last not in done for done in net.done)
    net.call(2, last)
    net.run(DEADLINE_S)
    assert nothing_is_missing(net, last)


def test_a_call_does_not_end_before_the_last_results_of_a_rank_that_is_late():
    net = calibrated(3)
    last = MEASURED_CALLS
    net.holds = (RESULT, 2, None)
    for rank in range(3):
        net.call(rank, last)
    net.run(DEADLINE_S / 4)
    assert last not in net.done[0]
    assert last in net.done[2]
    net.release()
    net.run(DEADLINE_S)
    assert nothing_is_missing(net, last)


def test_what_is_lost_is_not_sent_again_once_the_time_of_a_call_is_known():
    net = calibrated(2, elements=2 * 100 * 358)
    last = MEASURED_CALLS
    before = net.ranks[0].counters()
    net.call(0, last)
    net.collect()
    lost = next(sent for sent in net.wire if sent[1][0] & 0xF == CONTRIBUTION)
    net.wire.remove(lost)
    # The program of rank 1 has not called, and its shard waits for that.
    net.run(DEADLINE_S / 4)
    after = net.ranks[0].counters()
    assert after["segments_abandoned"] - before["segments_abandoned"] == 1
    assert after["segments_repaired"] == before["segments_repaired"]
    segments = [header[7] for header in net.of(0, CONTRIBUTION, last)]
    assert len(segments) == len(set(segments)) == 100


def test_a_rank_that_comes_after_its_stage_has_closed_sends_no_contributions():
    net = Recorded(2, "lossy")
    # Or it would know that rank 1 has closed its stage, too.
    net.holds = (RESULT, 1, 0)
    net.call(1)
    net.run(DEADLINE_S / 2 + JUST_S)
    net.call(0)
    net.run(DEADLINE_S)
    assert net.of(1, CONTRIBUTION, 0)
    assert not net.of(0, CONTRIBUTION, 0)


def test_stages_are_measured_from_the_opening_and_each_by_itself():
    net = Recorded(2, "lossy", elements=10 * 358)
    late = 0.03
    net.call(1)
    net.run(late)
    net.call(0)
    net.run(0.01)
    for rank in range(2):
        net.call(rank, 1)
    net.run(0.01)
    told = [
        # Of wire.h: even ones tell of the first stage, odd ones of the second.
        ((sequence + segment) % 2, _testing.decode_duration(code))
        for *_, sequence, segment, _, code in net.of(0, CONTRIBUTION, 1)
    ]
    assert {stage for stage, _ in told} == {0, 1}
    for stage, nanoseconds in told:
        if stage == 0:
            assert nanoseconds == pytest.approx(late * 1e9, rel=0.1)
        else:
            assert nanoseconds < late * 1e9 / 10


def test_what_comes_after_the_end_of_a_call_that_was_not_made_takes_no_memory():
    contributions_bytes = 2 * 100 * 4
    net = Recorded(3, "lossy", early_bytes_max=contributions_bytes)
    net.holds = (RESULT, None, 2)
    net.call(0)
    net.call(1)
    net.run(DEADLINE_S + JUST_S)
    assert net.held
    before = net.ranks[2].counters()["segments_late"]
    net.release()
    net.run(0.001)
    assert net.ranks[2].counters()["segments_late"] > before
    assert net.ranks[2].memory_bytes() <= contributions_bytes
