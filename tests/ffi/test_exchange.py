"""The calls of one collective at one rank, driven without a session.

A bucket has one element for each of two members, and each element is a segment:
segment 0 is the shard of rank 0, where the calls run, segment 1 that of rank 1.
"""

import pytest

import optireduce_testing as native

DEADLINE_S = 0.1  # both stages together
CLOSES_S = DEADLINE_S / 2  # the first stage
OURS, THEIRS = 1.0, 2.0


def calls_of(mode: str, *, members: int = 2, self: int = 0) -> native.Calls:
    """Calls at a rank, of which call 0 is open."""
    collective = native.Collective(
        "x",
        mode=mode,
        members=list(range(members)),
        elements=members,
        deadline_s=DEADLINE_S,
    )
    calls = native.Calls(collective, self)
    calls.open(0, 0.0)
    return calls


def submitted(mode: str, **options) -> native.Calls:
    """The same, and the program has made call 0."""
    calls = calls_of(mode, **options)
    calls.submit(0, 0.0, [OURS] * options.get("members", 2))
    return calls


MODES = ["exact", "agreed", "bounded", "lossy"]


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_leaves_with_the_last_contribution_and_the_result_ends_the_call(mode):
    calls = submitted(mode)
    assert calls.send(0, 1) == ("contribution", 1, OURS)
    assert calls.send(0, 1) is None
    assert calls.handle(0, 0.01, 1, 0, THEIRS) == "new"
    assert calls.send(0, 1) == ("result", 0, OURS + THEIRS)
    assert not calls.complete(0)
    assert calls.handle(0, 0.02, 1, 1, OURS + THEIRS, 2) == "new"
    assert calls.complete(0)
    assert calls.finish(0, 0.02) == [OURS + THEIRS] * 2
    assert calls.missing_contributions == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_segment_that_comes_twice_counts_once(mode):
    calls = submitted(mode)
    assert calls.handle(0, 0.01, 1, 0, THEIRS) == "new"
    assert calls.handle(0, 0.01, 1, 0, THEIRS) == "duplicate"
    assert calls.handle(0, 0.01, 1, 1, 3.0, 2) == "new"
    assert calls.handle(0, 0.01, 1, 1, 3.0, 2) == "duplicate"
    assert calls.finish(0, 0.02) == [OURS + THEIRS] * 2


@pytest.mark.parametrize("mode", MODES)
def test_a_segment_of_another_shard_is_refused(mode):
    calls = submitted(mode)
    assert calls.handle(0, 0.01, 1, 1, THEIRS) == "mismatched"
    assert calls.handle(0, 0.01, 1, 0, THEIRS, 2) == "mismatched"


def test_a_result_of_another_owner_that_is_not_marked_as_relayed_is_refused():
    calls = submitted("exact", members=3)
    assert calls.handle(0, 0.01, 1, 2, THEIRS, 3) == "mismatched"


def test_a_result_with_more_contributors_than_members_is_refused():
    assert submitted("exact").handle(0, 0.01, 1, 1, THEIRS, 3) == "mismatched"


# ---- When a stage closes.


def test_stages_that_wait_have_no_deadline():
    calls = submitted("exact")
    assert calls.expire(0, 1e6) == 0
    assert not calls.complete(0)


def test_a_stage_that_drops_closes_and_rescales():
    calls = submitted("lossy", members=3)
    assert calls.handle(0, 0.01, 1, 0, THEIRS) == "new"
    assert calls.expire(0, CLOSES_S) == 1
    sent = [calls.send(0, 2), calls.send(0, 2)]
    assert ("result", 0, (OURS + THEIRS) * 3 / 2) in sent
    assert calls.handle(0, 0.06, 2, 0, 4.0) == "late"


def test_a_stage_that_defers_closes_a_segment_when_its_turn_comes():
    calls = submitted("bounded")
    assert calls.send(0, 1) == ("contribution", 1, OURS)
    assert not calls.close_next(0, CLOSES_S / 2, 1)
    assert calls.expire(0, CLOSES_S) == 1
    assert calls.send(0, 1) is None
    assert calls.close_next(0, CLOSES_S, 1)
    assert calls.send(0, 1) == ("result", 0, OURS)
    assert calls.handle(0, CLOSES_S, 1, 0, THEIRS) == "late"


def test_a_contribution_before_its_segment_is_closed_is_not_late():
    calls = submitted("bounded")
    assert calls.expire(0, CLOSES_S) == 1
    assert calls.handle(0, CLOSES_S, 1, 0, THEIRS) == "new"


def test_a_drain_waits_in_both_stages():
    calls = calls_of("bounded")
    calls.open(1, 0.0, drain=True)
    assert calls.expire(1, 1e6) == 0


# ---- A late segment: one answer for a call that is open and for one that is over.


def end_with_late_contribution(mode: str, *, over: bool) -> tuple[native.Calls, str]:
    """Call 0 closes without the contribution of rank 1, which comes then."""
    calls = submitted(mode)
    calls.send(0, 1)
    calls.expire(0, CLOSES_S)
    calls.expire(0, DEADLINE_S)
    if mode == "agreed":
        calls.handle(0, DEADLINE_S, 1, 1, 3.0, 2)
    if over:
        calls.finish(0, DEADLINE_S)
        calls.erase(0)
    return calls, calls.handle(0, 0.2, 1, 0, THEIRS)


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("mode", ["agreed", "bounded"])
def test_a_late_contribution_joins_the_next_sum_where_it_is_deferred(mode, over):
    calls, receipt = end_with_late_contribution(mode, over=over)
    assert receipt == "late"
    if not over:
        calls.finish(0, 0.2)
        calls.erase(0)
    assert calls.handle(0, 0.2, 1, 0, THEIRS) == "duplicate"
    calls.open(1, 1.0)
    calls.submit(1, 1.0, [OURS, OURS])
    calls.handle(1, 1.0, 1, 0, 0.0)
    calls.handle(1, 1.0, 1, 1, 0.0, 2)
    assert calls.finish(1, 1.0) == [OURS + THEIRS, 0.0]
    assert calls.deferred == 0.5


@pytest.mark.parametrize(("over", "receipt"), [(False, "late"), (True, "stale")])
def test_a_late_contribution_is_lost_where_it_is_dropped(over, receipt):
    assert end_with_late_contribution("lossy", over=over)[1] == receipt


@pytest.mark.parametrize("over", [False, True])
def test_a_late_result_joins_the_next_result_where_it_is_deferred(over):
    calls = submitted("bounded")
    calls.handle(0, 0.01, 1, 0, THEIRS)
    calls.expire(0, DEADLINE_S)
    assert calls.finish(0, DEADLINE_S) == [OURS + THEIRS, 0.0]
    if over:
        calls.erase(0)
    assert calls.handle(0, 0.2, 1, 1, 3.0, 2) == "late"
    calls.open(1, 1.0)
    calls.submit(1, 1.0, [0.0, 0.0])
    calls.handle(1, 1.0, 1, 0, 0.0)
    calls.handle(1, 1.0, 1, 1, 5.0, 2)
    assert calls.finish(1, 1.0) == [0.0, 8.0]


@pytest.mark.parametrize(("mode", "receipt"), [("exact", "stale"), ("agreed", "stale")])
def test_a_result_of_a_call_that_is_over_is_stale_where_results_are_waited_for(
    mode, receipt
):
    calls = submitted(mode)
    calls.handle(0, 0.01, 1, 0, THEIRS)
    calls.handle(0, 0.01, 1, 1, 3.0, 2)
    calls.finish(0, 0.01)
    calls.erase(0)
    assert calls.handle(0, 0.02, 1, 1, 3.0, 2) == receipt


@pytest.mark.parametrize("mode", MODES)
def test_a_segment_is_stale_where_no_call_has_opened_and_this_one_was_given_up(mode):
    collective = native.Collective("x", mode=mode, members=[0, 1], elements=2)
    calls = native.Calls(collective, 0)
    assert calls.handle(0, 0.01, 1, 0, THEIRS) == "stale"


# ---- Early data.


def test_a_sum_exists_before_the_program_calls_and_its_contribution_is_late():
    calls = calls_of("bounded")
    calls.handle(0, 0.01, 1, 0, THEIRS)
    calls.expire(0, CLOSES_S)
    assert calls.close_next(0, CLOSES_S, 1)
    assert calls.send(0, 1) == ("result", 0, THEIRS)
    calls.submit(0, 0.06, [OURS, OURS])
    calls.handle(0, 0.06, 1, 1, 3.0, 2)
    assert calls.finish(0, 0.06) == [THEIRS, 3.0]
    calls.open(1, 1.0)
    calls.submit(1, 1.0, [0.0, 0.0])
    calls.handle(1, 1.0, 1, 0, 0.0)
    calls.handle(1, 1.0, 1, 1, 0.0, 2)
    assert calls.finish(1, 1.0) == [OURS, 0.0]


def test_a_result_that_comes_early_is_part_of_the_call():
    calls = calls_of("bounded")
    assert calls.handle(0, 0.01, 1, 1, THEIRS, 1) == "new"
    calls.submit(0, 0.02, [OURS, OURS])
    # Its place in the bucket is written, and the contribution is retained.
    assert calls.send(0, 1) == ("contribution", 1, OURS)
    calls.handle(0, 0.03, 1, 0, THEIRS)
    assert calls.finish(0, 0.03) == [OURS + THEIRS, THEIRS]


def test_no_result_comes_before_the_contribution_that_it_waits_for():
    assert calls_of("exact").handle(0, 0.01, 1, 1, 3.0, 2) == "mismatched"


# ---- What is sent, and sent again.


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_is_sent_again_until_a_stage_that_drops_is_over(mode):
    calls = submitted(mode)
    calls.send(0, 1)
    # The first calls that drop retransmit, to measure the time of a whole call.
    assert calls.lose(0, 1, "contribution", 1) == "again"
    assert calls.send(0, 1) == ("contribution", 1, OURS)
    calls.expire(0, DEADLINE_S)
    expected = "abandoned" if mode == "lossy" else "again"
    assert calls.lose(0, 1, "contribution", 1) == expected


def test_a_result_shows_that_its_owner_needs_no_contribution():
    calls = submitted("exact")
    calls.send(0, 1)
    calls.handle(0, 0.01, 1, 1, 3.0, 2)
    assert calls.lose(0, 1, "contribution", 1) == "not needed"


def test_a_result_without_a_contribution_that_is_dropped_needs_it_no_more():
    calls = submitted("lossy")
    calls.send(0, 1)
    calls.handle(0, 0.01, 1, 1, THEIRS, 1)
    assert calls.lose(0, 1, "contribution", 1) == "not needed"


def test_a_sum_without_it_does_not_show_that_a_deferred_contribution_has_arrived():
    calls = submitted("bounded")
    calls.send(0, 1)
    calls.handle(0, 0.01, 1, 1, THEIRS, 1)
    assert calls.lose(0, 1, "contribution", 1) == "again"
    assert calls.send(0, 1) == ("contribution", 1, OURS)
    assert calls.deliver(0, 1, "contribution", 1)
    assert calls.lose(0, 1, "contribution", 1) == "not needed"


def test_a_call_that_the_program_has_not_made_merges_after_its_first_stage():
    calls = calls_of("bounded", members=3)
    calls.handle(0, 0.01, 1, 0, THEIRS)
    assert not calls.can_merge(0)
    assert calls.expire(0, CLOSES_S) == 1
    assert not calls.can_merge(0)
    for peer in (1, 2):
        calls.close_next(0, CLOSES_S, peer)
    assert calls.can_merge(0)


def test_a_call_that_is_over_stays_until_its_peers_have_its_data():
    calls = submitted("bounded")
    calls.send(0, 1)
    calls.handle(0, 0.01, 1, 0, THEIRS)
    calls.send(0, 1)
    calls.handle(0, 0.01, 1, 1, THEIRS, 1)
    calls.finish(0, 0.01)
    assert calls.in_flight == 1.0
    assert not calls.removable(0)
    assert calls.deliver(0, 1, "result", 0)
    assert not calls.removable(0)
    assert calls.deliver(0, 1, "contribution", 1)
    assert calls.removable(0)


def test_a_window_that_is_full_defers_what_a_call_has_for_a_peer():
    # max_lag is 1: two calls that are not delivered fill it.
    calls = submitted("bounded")
    for sequence in range(3):
        if sequence:
            calls.open(sequence, sequence)
            calls.submit(sequence, sequence, [OURS, OURS])
        sent = calls.send(sequence, 1)
        assert sent == (("contribution", 1, OURS) if sequence < 2 else None)
        calls.expire(sequence, sequence + DEADLINE_S)
    calls.finish(2, 2 + DEADLINE_S)
    for sequence in range(2):
        calls.deliver(sequence, 1, "contribution", 1)
    calls.open(3, 3.0)
    calls.submit(3, 3.0, [OURS, OURS])
    assert calls.send(3, 1) == ("contribution", 1, 2 * OURS)


# ---- The report.


def test_the_slowest_member_is_the_one_with_the_most_missing_data():
    calls = submitted("bounded", members=3)
    calls.handle(0, 0.01, 2, 0, THEIRS)
    calls.handle(0, 0.01, 2, 2, 3.0, 3)
    calls.expire(0, CLOSES_S)
    calls.expire(0, DEADLINE_S)
    calls.finish(0, DEADLINE_S)
    assert calls.slowest == 1
    assert calls.missing_contributions == pytest.approx(1 / 6)


@pytest.mark.parametrize("mode", MODES)
def test_losses_count_as_retransmitted_and_refusals_do_not(mode):
    calls = submitted(mode)
    calls.send(0, 1)
    assert calls.lose(0, 1, "contribution", 1, refused=True) == "again"
    calls.send(0, 1)
    assert calls.lose(0, 1, "contribution", 1) == "again"
    calls.handle(0, 0.01, 1, 0, THEIRS)
    calls.handle(0, 0.02, 1, 1, OURS + THEIRS, 2)
    calls.finish(0, 0.02)
    assert calls.retransmitted == 1


# ---- What is learned of arrival times.

LEARNING_CALLS = 40
PUNCTUAL_S, BEHIND_S = 0.001, 0.04


def learn(calls: native.Calls, *, slow_link: bool) -> None:
    """Makes calls in which all that rank 3 sends comes late."""
    for call in range(1, LEARNING_CALLS):
        calls.open(call, 0.0)
        calls.submit(call, 0.0, [OURS] * 4)
        for member in (1, 2, 3):
            behind = member == 3
            at = BEHIND_S if behind else PUNCTUAL_S
            since_call = at if behind and slow_link else 0.0
            calls.handle(call, at, member, 0, THEIRS, since_call=since_call)
            calls.handle(call, at, member, member, THEIRS, 4)
        calls.finish(call, BEHIND_S)
        calls.erase(call)


def learning_calls() -> native.Calls:
    collective = native.Collective(
        "x", mode="bounded", members=list(range(4)), elements=4, deadline_s=DEADLINE_S
    )
    return native.Calls(collective, 0, late_budget=0.01, goes_on=True)


def test_the_first_contribution_of_a_straggler_is_not_waited_for():
    calls = learning_calls()
    learn(calls, slow_link=False)
    assert calls.straggles(3)
    calls.open(LEARNING_CALLS, 0.0)
    calls.submit(LEARNING_CALLS, 0.0, [OURS] * 4)
    for member in (1, 2):
        calls.handle(LEARNING_CALLS, PUNCTUAL_S, member, 0, THEIRS)
    # The sum has been formed.
    assert calls.handle(LEARNING_CALLS, BEHIND_S, 3, 0, THEIRS) == "late"


def test_a_rank_that_calls_in_time_and_sends_late_is_no_straggler():
    calls = learning_calls()
    learn(calls, slow_link=True)
    assert not calls.straggles(3)


def test_a_result_whose_first_datagram_is_lost_is_waited_for():
    calls = learning_calls()
    for call in range(1, 3 * LEARNING_CALLS):
        calls.open(call, 0.0)
        calls.submit(call, 0.0, [OURS] * 4)
        for member in (1, 2, 3):
            calls.handle(call, PUNCTUAL_S, member, 0, THEIRS)
            lost = member == 3 and call % 5 == 0
            at = BEHIND_S if lost else PUNCTUAL_S
            calls.handle(call, at, member, member, THEIRS, 4, retransmission=lost)
        calls.finish(call, BEHIND_S)
        calls.erase(call)
    assert calls.deadline_needed > BEHIND_S


def test_results_that_come_after_the_end_of_their_call_are_learned_from():
    in_time_s, late_s = 0.8 * DEADLINE_S, 1.5 * DEADLINE_S
    calls = native.Calls(
        native.Collective(
            "x", mode="bounded", members=[0, 1], elements=2, deadline_s=DEADLINE_S
        ),
        0,
        late_budget=0.01,
    )
    for call in range(2 * LEARNING_CALLS):
        in_time = call < LEARNING_CALLS
        calls.open(call, 0.0)
        calls.submit(call, 0.0, [OURS] * 2)
        assert calls.handle(call, PUNCTUAL_S, 1, 0, THEIRS) == "new"
        if in_time:
            assert calls.handle(call, in_time_s, 1, 1, 3.0, 2) == "new"
        calls.expire(call, DEADLINE_S)
        calls.finish(call, DEADLINE_S)
        calls.erase(call)
        if not in_time:
            assert calls.handle(call, late_s, 1, 1, 3.0, 2) == "late"
    calls.open(2 * LEARNING_CALLS, 0.0)
    assert late_s < calls.deadline_needed < 2 * late_s
