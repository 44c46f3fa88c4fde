"""Bounded calls of three ranks or more: a rank that was absent skips missed calls.

Steps take a tenth of a second. `call` takes positions, as programs count.
"""

import numpy as np
import pytest
from session import Session

STEP_S = 0.1
EXCHANGE_S = 0.01  # more than the calls of ranks that are in step take
DEADLINE_S = 0.1  # both stages together
DRAINED_S = 2.0
JUST_S = 1e-6
CONTRIBUTION = 1  # kind of a datagram


class Steps(Session):
    """Ranks whose programs count their calls; sums what they give and get."""

    def __init__(self, world_size=3, **options):
        super().__init__(world_size, "bounded", **options)
        self.position = [0] * world_size
        self.drains = set()

    def step(self, *ranks):
        """The ranks make their next call at the same time; a step passes."""
        self.make(*ranks)
        self.run(STEP_S + DEADLINE_S)

    def make(self, *ranks, **how):
        for rank in ranks:
            self.call(rank, self.position[rank], **how)
            if how.get("drain"):
                self.drains.add((rank, self.position[rank]))
            self.position[rank] += 1

    def last(self, rank):
        """The end of the newest call, or None."""
        return self.done[rank].get(self.position[rank] - 1)

    def given(self):
        calls = self.buckets.keys() - self.drains
        return sum(1 + rank + 10 * at for rank, at in calls)

    def got(self, rank):
        return sum(bucket for (of, _), bucket in self.buckets.items() if of == rank)

    def drain_all(self):
        given = self.given()
        ranks = range(len(self.ranks))
        self.make(*ranks, drain=True)
        self.run(DRAINED_S)
        assert {self.last(rank).error for rank in ranks} == {""}
        # One number for all.
        assert len({self.last(rank).number for rank in ranks}) == 1
        for rank in ranks:
            np.testing.assert_array_equal(self.got(rank), given)


def absent(calls, **options):
    """Rank 0 is absent for some calls, after three with all ranks."""
    session = Steps(**options)
    for _ in range(3):
        session.step(0, 1, 2)
    for _ in range(calls):
        session.step(1, 2)
    return session


# ---- The absence.


def test_calls_do_not_wait_for_a_rank_that_has_missed_the_call_before():
    session = absent(0)
    session.make(1, 2)
    session.run(EXCHANGE_S)
    assert session.last(1) is None, "the first call waits for it"
    session.run(DEADLINE_S)
    for _ in range(3):
        session.make(1, 2)
        session.run(EXCHANGE_S)
        for rank in (1, 2):
            assert session.last(rank).missing_contributions > 0
            assert session.last(rank).missing_results == 0
    session.drain_all()


def test_a_minority_waits_for_the_others():
    session = Steps(4)
    session.step(0, 1, 2, 3)
    for _ in range(3):
        session.make(0, 1)
        session.run(EXCHANGE_S)
        assert session.last(0) is None
        session.run(DEADLINE_S)
        assert session.last(0) is not None
    session.drain_all()


def test_a_process_that_does_not_answer_is_not_waited_for_either():
    session = absent(0)
    session.silent = {0}
    session.step(1, 2)
    session.step(1, 2)
    session.make(1, 2)
    session.run(EXCHANGE_S)
    assert session.last(1).missing_results > 0
    session.silent = set()
    session.make(0)
    session.step(1, 2)
    session.drain_all()


def test_a_mean_is_that_of_the_ranks_that_take_part():
    session = absent(1, averages=True)
    session.make(1, 2)
    session.run(EXCHANGE_S)
    # The process of the absent rank sums its shard all the same.
    for rank in (1, 2):
        at = session.position[rank] - 1
        given = sum(1 + of + 10 * at for of in (1, 2))
        np.testing.assert_allclose(session.buckets[rank, at], given * 3 / 2)


def test_the_others_do_not_stand_for_a_rank_whose_data_is_late():
    """The first call that a rank misses: its contribution may still come."""
    session = absent(1, averages=True)
    at = session.position[1] - 1
    given = sum(1 + of + 10 * at for of in (1, 2))
    np.testing.assert_array_equal(session.buckets[1, at], given)


def test_late_data_counts_once_in_a_mean_of_the_present():
    session = absent(2, averages=True)
    session.make(0)
    # Before the others know that it is back.
    session.make(1, 2)
    session.run(STEP_S + DEADLINE_S)
    session.make(0, 1, 2, drain=True)
    session.run(DRAINED_S)
    totals = [session.got(rank) for rank in range(3)]
    np.testing.assert_allclose(totals[0], totals[1], rtol=1e-6)
    given = session.given()
    assert (totals[0] >= given * (1 - 1e-6)).all()
    assert (totals[0] < 2 * given).all()


def test_late_data_is_added_to_the_data_that_stands_for_an_absent_rank():
    session = absent(0, averages=True)
    # The contributions of rank 0 to this call come two calls later.
    session.holds = lambda header, _: (header.source, header.kind) == (0, CONTRIBUTION)
    session.step(0, 1, 2)
    session.step(1, 2)
    session.release()
    session.run(JUST_S)
    session.step(1, 2)
    present = (1 + 1 + 50) + (1 + 2 + 50)
    late = 1 + 0 + 30
    for rank in (1, 2):
        bucket = session.buckets[rank, 5]
        np.testing.assert_array_equal(bucket[100:], present * 3 / 2 + late)


# ---- The return.


@pytest.mark.parametrize("calls", [1, 2, 3, 10])
def test_a_returned_rank_is_in_time_in_the_next_call_of_the_others(calls):
    session = absent(calls)
    session.make(0)
    session.run(EXCHANGE_S)
    assert session.last(0) is None, "it waits for the others"
    session.make(1, 2)
    session.run(EXCHANGE_S)
    for rank in range(3):
        assert session.last(rank).missing_contributions == 0
        assert session.last(rank).number == 3 + calls
    assert session.last(0).skipped == calls
    assert session.ranks[0].counters()["calls_skipped"] == calls


def test_a_returned_rank_gets_what_it_has_missed_at_once():
    session = absent(4)
    session.make(0)
    session.run(EXCHANGE_S)
    session.make(1, 2)
    session.run(EXCHANGE_S)
    np.testing.assert_array_equal(session.got(0), session.got(1))
    np.testing.assert_array_equal(session.got(0), session.given())


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_rank_that_owns_no_part_of_a_bucket_is_in_step_again(late):
    # One element has one owner, whom alone contributions reach.
    session = Steps(elements=1)
    others = [rank for rank in range(3) if rank != late]
    for _ in range(3):
        session.step(0, 1, 2)
    for _ in range(3):
        session.step(*others)
    session.make(late)
    session.run(EXCHANGE_S)
    assert session.last(late) is None
    session.make(*others)
    session.run(EXCHANGE_S)
    assert [session.last(rank).number for rank in range(3)] == [6, 6, 6]
    session.step(0, 1, 2)
    for rank in range(3):
        assert session.last(rank).missing_contributions == 0
    session.drain_all()


def test_later_calls_keep_step_without_a_wait():
    session = absent(2)
    session.make(0)
    session.step(1, 2)
    for _ in range(3):
        session.make(0, 1, 2)
        session.run(EXCHANGE_S)
        assert [session.last(r).missing_contributions for r in range(3)] == [0, 0, 0]
        assert session.last(0).skipped == 0
        session.run(STEP_S)


def test_a_rank_that_is_late_in_an_open_call_skips_nothing():
    session = absent(0)
    session.make(1, 2)
    session.run(DEADLINE_S / 4)
    session.make(0)
    session.run(EXCHANGE_S)
    assert session.last(0).number == 3
    assert session.last(1).missing_contributions == 0


def test_every_rank_may_be_absent_in_turn():
    session = absent(0)
    for late in (0, 1, 2, 0):
        others = [rank for rank in range(3) if rank != late]
        session.step(*others)
        session.step(*others)
        session.make(late)
        session.run(EXCHANGE_S)
        session.step(*others)
        assert session.last(late).missing_contributions == 0
    session.drain_all()


# ---- The wait.


def test_the_wait_ends_after_two_steps_in_which_the_others_waited_for_the_rank():
    session = absent(3)
    session.make(0)
    # One step of the others has passed, and a moment of the next one. A deadline is
    # that of a call in which they may have waited, the other one that of this call.
    session.run(STEP_S + 2 * DEADLINE_S - EXCHANGE_S)
    assert session.last(0) is None
    session.run(DEADLINE_S + 2 * EXCHANGE_S)
    assert session.last(0).error == ""
    assert session.last(0).passed


def test_what_a_rank_passes_joins_its_next_call():
    session = absent(3)
    session.make(0)
    while session.last(0) is None:
        session.run(EXCHANGE_S)
    assert session.last(0).passed
    assert session.last(0).skipped == 0
    # It waits in one of eight calls or more.
    for _ in range(8):
        session.make(0)
        session.run(EXCHANGE_S)
        session.step(1, 2)
        if not session.last(0).passed:
            break
    assert session.last(0).missing_contributions == 0
    session.step(0, 1, 2)
    for rank in range(3):
        np.testing.assert_array_equal(session.got(rank), session.given())


def test_a_rank_that_passes_calls_until_its_drain_loses_nothing():
    session = absent(3)
    for _ in range(3):
        session.make(0)
        while session.last(0) is None:
            session.run(EXCHANGE_S)
        assert session.last(0).passed
    session.drain_all()


def test_a_rank_that_waits_in_vain_waits_in_few_of_its_calls():
    session = absent(3)
    waits = 0
    for _ in range(24):
        session.make(0)
        session.run(DEADLINE_S + EXCHANGE_S)
        waits += session.last(0) is None
        while session.last(0) is None:
            session.run(EXCHANGE_S)
        session.run(1.0)
        # The others come, and are a call ahead again.
        session.step(1, 2)
        session.step(1, 2)
    assert 1 <= waits <= 8
    session.drain_all()


def test_waits_do_not_grow_where_the_others_wait_outside_of_the_session():
    # They wait in a collective of another library after each five calls, for example:
    # the absence of this rank lengthens an interval between their calls.
    session = absent(0)
    for _ in range(6):
        for _ in range(5):
            session.step(1, 2)
        before = session.now
        for _ in range(5):
            session.make(0)
            while session.last(0) is None:
                session.run(EXCHANGE_S)
        longest = 2 * (STEP_S + DEADLINE_S) + 5 * (DEADLINE_S + EXCHANGE_S)
        assert session.now - before < longest
    session.drain_all()


def test_a_returned_rank_does_not_wait_for_ranks_that_wait_for_it_elsewhere():
    # They wait in a metric of mode "exact" at the end of each step, for example.
    session = absent(2)
    metric = {"name": "metric", "mode": "exact", "fingerprint": 2, "token": 900}
    for rank in (1, 2):
        assert session.submit(rank, np.ones(300, np.float32), **metric) == ""
    session.run(EXCHANGE_S)
    session.make(0)
    session.run(EXCHANGE_S)
    assert session.last(0).error == ""
    assert session.submit(0, np.ones(300, np.float32), **metric) == ""
    session.run(EXCHANGE_S)
    assert [session.done[rank][900].error for rank in range(3)] == [""] * 3


def test_the_time_of_the_wait_is_part_of_the_call():
    session = absent(2)
    session.make(0)
    session.run(STEP_S / 2)
    session.make(1, 2)
    session.run(EXCHANGE_S)
    assert session.last(0).elapsed >= STEP_S / 2


# ---- Steps with several collectives.

LOSS = {"name": "loss", "fingerprint": 2}


class TwoNames(Steps):
    """Ranks that call two collectives in each step: gradients, and a loss."""

    def loss(self, *ranks):
        for rank in ranks:
            at = self.position[rank] - 1
            values = np.ones(300, np.float32)
            assert self.submit(rank, values, token=1000 + at, sequence=at, **LOSS) == ""

    def loss_of(self, rank):
        return self.done[rank].get(1000 + self.position[rank] - 1)

    def both(self, *ranks):
        self.step(*ranks)
        self.loss(*ranks)
        self.run(STEP_S + DEADLINE_S)


def test_an_absence_costs_one_deadline_in_all_collectives_of_a_step():
    session = TwoNames()
    for _ in range(3):
        session.both(0, 1, 2)
    session.make(1, 2)
    session.run(EXCHANGE_S)
    assert session.last(1) is None, "the first call waits for it"
    session.run(DEADLINE_S)
    for _ in range(3):
        session.loss(1, 2)
        session.run(EXCHANGE_S)
        assert session.loss_of(1).missing_contributions > 0
        session.make(1, 2)
        session.run(EXCHANGE_S)
        assert session.last(1).missing_contributions > 0


def test_a_rank_that_is_back_in_one_collective_is_waited_for_in_all():
    session = TwoNames()
    for _ in range(3):
        session.both(0, 1, 2)
    for _ in range(3):
        session.both(1, 2)
    session.make(0)
    session.run(EXCHANGE_S)
    session.make(1, 2)
    session.run(EXCHANGE_S)
    assert session.last(0).missing_contributions == 0
    session.loss(1, 2)
    session.run(EXCHANGE_S)
    assert session.loss_of(1) is None
    session.loss(0)
    session.run(EXCHANGE_S)
    for rank in range(3):
        # The process of rank 0 does not wait for its program in its own shard.
        assert session.loss_of(rank).missing_contributions < 0.2


def test_a_drain_of_one_collective_lets_the_calls_of_all_pass():
    session = TwoNames()
    for _ in range(3):
        session.both(0, 1, 2)
    session.both(1, 2)
    session.make(1, 2, drain=True)
    session.run(EXCHANGE_S)
    session.make(0)
    session.run(JUST_S)
    session.loss(0)
    session.run(JUST_S)
    assert session.loss_of(0).passed


# ---- Drains.


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_drains_of_ranks_that_have_skipped_calls_are_one_call(calls):
    session = absent(calls)
    session.make(0)
    session.step(1, 2)
    session.drain_all()


def test_a_drain_follows_the_calls_of_a_rank_that_did_not_come_back_before():
    session = absent(3)
    session.drain_all()


def test_calls_after_a_drain_have_one_number_again():
    session = absent(3)
    session.make(0)
    session.step(1, 2)
    session.drain_all()
    session.step(0, 1, 2)
    assert len({session.last(rank).number for rank in range(3)}) == 1
    assert session.last(0).missing_contributions == 0


def test_calls_of_a_rank_end_at_once_while_all_others_wait_in_a_drain():
    session = absent(2)
    session.make(1, 2, drain=True)
    session.run(EXCHANGE_S)
    # The program of rank 0 has steps left.
    for _ in range(2):
        session.make(0)
        session.run(JUST_S)
        assert session.last(0).passed
    given = session.given()
    session.make(0, drain=True)
    session.run(DRAINED_S)
    for rank in range(3):
        assert session.last(rank).error == ""
        np.testing.assert_array_equal(session.got(rank), given)


def test_calls_of_two_ranks_end_at_once_while_the_one_in_front_waits_in_a_drain():
    session = absent(0)
    for _ in range(3):
        session.step(2)
    session.make(2, drain=True)
    session.run(EXCHANGE_S)
    # Neither of the others can begin a call that the other one waits for.
    for _ in range(5):
        session.make(0, 1)
        session.run(EXCHANGE_S)
        assert session.last(0).passed
        assert session.last(1).passed
    given = session.given()
    session.make(0, 1, drain=True)
    session.run(DRAINED_S)
    for rank in range(3):
        assert session.last(rank).error == ""
        np.testing.assert_array_equal(session.got(rank), given)


@pytest.mark.parametrize("drains_first", [True, False])
def test_calls_do_not_wait_for_a_rank_that_waits_in_a_drain(drains_first):
    session = absent(0)
    # Two more calls of these programs than of that of rank 2.
    for made in range(2):
        if made == 0 and drains_first:
            session.make(2, drain=True)
            session.run(EXCHANGE_S)
        session.make(0, 1)
        session.run(EXCHANGE_S)
        if made == 0 and not drains_first:
            assert session.last(0) is None
            session.make(2, drain=True)
            session.run(EXCHANGE_S)
        for rank in (0, 1):
            assert not session.last(rank).passed
            assert session.last(rank).missing_results == 0
        session.run(STEP_S)
    given = session.given()
    session.make(0, 1, drain=True)
    session.run(DRAINED_S)
    for rank in range(3):
        np.testing.assert_array_equal(session.got(rank), given)


def test_calls_at_the_end_do_not_wait_for_absent_ranks_however_many_these_are():
    session = absent(0)
    session.step(0, 2)
    session.make(2, drain=True)
    session.run(EXCHANGE_S)
    for _ in range(3):
        session.make(0)
        session.run(EXCHANGE_S)
        assert session.last(0).missing_contributions > 0
        session.run(STEP_S)
    given = session.given() + sum(2 + 10 * at for at in range(3, 5))
    for _ in range(2):
        session.make(1)
        session.run(DEADLINE_S + 4 * STEP_S)
    session.make(0, 1, drain=True)
    session.run(DRAINED_S)
    for rank in range(3):
        np.testing.assert_array_equal(session.got(rank), given)


def test_a_drain_that_one_rank_gives_up_fails_on_all_with_its_reason():
    session = absent(2)
    session.make(0)
    session.step(1, 2)
    session.make(1, 2, drain=True)
    session.run(EXCHANGE_S)
    session.ranks[1].cancel(session.now, "the user has pressed Ctrl-C")
    session.run(EXCHANGE_S)
    assert "Ctrl-C" in session.last(1).error
    session.make(0, drain=True)
    session.run(EXCHANGE_S)
    for rank in (0, 2):
        assert "rank 1" in session.last(rank).error
        assert "Ctrl-C" in session.last(rank).error
    # All go on.
    session.step(0, 1, 2)
    assert {session.last(rank).error for rank in range(3)} == {""}


def test_a_member_that_dies_while_the_others_wait_in_a_drain_is_removed():
    session = absent(2, peer_timeout_s=2.0)
    session.make(1, 2, drain=True)
    session.silent = {0}
    session.run(20.0)
    for rank in (1, 2):
        assert session.last(rank).error == ""
        assert session.ranks[rank].live() == [1, 2]


# ---- The end of programs.


def test_calls_that_are_left_when_the_others_have_gone_end_at_once():
    session = absent(2)
    session.make(0)
    session.step(1, 2)
    # Rank 0 has skipped two calls: as many are left of its program.
    for rank in (1, 2):
        session.ranks[rank].leave(session.now, "its program has ended")
    session.run(STEP_S)
    for _ in range(2):
        session.make(0)
        session.run(EXCHANGE_S)
        assert session.last(0).error == ""
        assert session.last(0).passed
    # The others have made no further call: this one needs them.
    session.make(0)
    session.run(100.0)
    assert "rank 1 has left" in session.last(0).error


# ---- Bad numbers.


def test_a_position_that_leaves_no_room_for_skipped_calls_is_an_error():
    session = Steps()
    error = session.submit(0, np.zeros(300, np.float32), sequence=2**31)
    assert "must be at most 2147483647" in error
