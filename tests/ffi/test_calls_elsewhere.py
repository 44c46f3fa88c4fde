"""One rank waits in a call that the others never make, and these do not wait."""

import numpy as np
import pytest
from session import Session

CONTRIBUTION = 1
MISMATCH_TIMEOUT_S = 1.0
# Chosen: "wait" calls wait so long for a rank that is far behind.
PEER_TIMEOUT_S = 3.0
# Source: of both stages; every call that does not wait ends by it.
DEADLINE_S = 0.1
# Chosen: of an experiment of 20 s in virtual time.
CALLS_MAX = 60

_MODES = pytest.mark.parametrize(
    ("mode", "on_lag"),
    [
        ("bounded", "wait"),
        ("bounded", "suspend"),
        ("bounded", "catch_up"),
        ("lossy", "wait"),
    ],
)


class Steps(Session):
    """All ranks but the last make one call of `grads` after the other.

    Attributes:
        errors: of each rank, the first.
        leaves: a rank leaves with its first error.
    """

    def __init__(self, world_size: int, mode: str, *, leaves: bool = False, **options):
        super().__init__(
            world_size,
            mode,
            mismatch_timeout_s=MISMATCH_TIMEOUT_S,
            peer_timeout_s=PEER_TIMEOUT_S,
            **options,
        )
        self.last = world_size - 1
        self.leaves = leaves
        self.made = [0] * world_size
        self.errors: dict[int, str] = {}

    def make(self, rank: int, name: str, sequence: int, mode: str):
        """Makes a call, whose token is its number; others count from 1000."""
        token = sequence + (0 if name == "grads" else 1000)
        array = np.ones(10, np.float32)
        facts = {"name": name, "mode": mode, "token": token}
        why = self.submit(rank, array, sequence=sequence, **facts)
        if why:
            self.errors.setdefault(rank, why)

    def step(self, *ranks: int, seconds: float = 3 * DEADLINE_S):
        """The ranks make their next call, unless an earlier one is under way."""
        for rank in ranks:
            if self.made[rank] in (0, *(token + 1 for token in self.done[rank])):
                self.make(rank, "grads", self.made[rank], self.mode)
                self.made[rank] += 1
        self.run(seconds)
        for rank, done in enumerate(self.done):
            failed = [each.error for each in done.values() if each.error]
            if failed and rank not in self.errors:
                self.errors[rank] = failed[0]
                if self.leaves:
                    self.ranks[rank].leave(self.now, failed[0])

    def step_until_all_fail(self):
        """The others go on until every rank has an error."""
        others = range(self.last)
        for _ in range(CALLS_MAX):
            self.step(*(rank for rank in others if rank not in self.errors))
            if len(self.errors) == len(self.ranks):
                return
        raise AssertionError(f"without an error on every rank: {self.errors}")


@_MODES
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
def test_every_rank_gets_an_error_that_names_both_sides(
    mode, on_lag, ranks, joined, leaves
):
    session = Steps(ranks, mode, on_lag=on_lag, leaves=leaves)
    if joined:
        session.step(*range(ranks))
    session.make(session.last, "loss", 0, "exact")
    begun = session.now
    session.step_until_all_fail()
    # The error of a call that waits for lag comes at its end.
    latest = begun + 3 * MISMATCH_TIMEOUT_S + 2 * PEER_TIMEOUT_S
    assert begun + MISMATCH_TIMEOUT_S < session.now < latest
    for error in session.errors.values():
        assert "the ranks disagree" in error
        assert "of grads: float32[10]" in error
        assert "call 0 of loss: float32[10]" in error


@pytest.mark.parametrize("on_lag", ["wait", "suspend", "catch_up"])
def test_a_rank_that_waits_for_slow_ones_does_not_disagree(on_lag):
    session = Steps(2, "bounded", on_lag=on_lag, max_lag=1)
    session.step(0, 1)
    # Its window to rank 1, which is far behind, is full: the data of its last calls
    # stays here for a later one.
    session.holds = lambda header, _: (header.kind, header.source) == (CONTRIBUTION, 0)
    for _ in range(40):
        session.step(0)
    session.make(0, "loss", 0, "exact")
    session.run(DEADLINE_S)
    session.release()
    while session.made[1] < session.made[0]:
        session.step(1)
    assert session.now > 4 * MISMATCH_TIMEOUT_S
    session.make(1, "loss", 0, "exact")
    session.run(1.0)
    assert session.errors == {}
    assert all(done[1000].error == "" for done in session.done)


def test_a_rank_whose_other_thread_comes_later_does_not_disagree():
    session = Steps(2, "bounded")
    session.step(0, 1)
    session.make(1, "loss", 0, "exact")
    for _ in range(12):
        session.step(0)
        # Some calls behind.
        if session.made[0] > 4:
            session.step(1)
    assert session.now > 4 * MISMATCH_TIMEOUT_S
    assert session.errors == {}


def test_a_rank_that_makes_more_calls_since_it_has_skipped_some_does_not_disagree():
    session = Steps(3, "bounded", on_lag="catch_up")
    session.step(0, 1, 2)
    for _ in range(8):
        session.step(0, 1)
    while session.made[2] < 4:
        session.step(0, 1, 2)
    assert session.ranks[2].counters()["calls_skipped"] > 0
    # The others have made all their calls, and rank 2 has not.
    for rank in (0, 1):
        session.make(rank, "loss", 0, "exact")
    for _ in range(10):
        session.step(2)
    assert session.errors == {}
    session.make(2, "loss", 0, "exact")
    session.run(1.0)
    assert [done[1000].error for done in session.done] == [""] * 3


def test_an_error_is_of_a_call_that_the_other_rank_has_not_made():
    session = Steps(3, "bounded")
    session.step(0, 1, 2)
    # Ranks 1 and 2 disagree after the next call, to which rank 0 comes late.
    session.step(1, 2)
    session.make(1, "one", 0, "exact")
    session.make(2, "other", 0, "exact")
    session.run(3 * MISMATCH_TIMEOUT_S)
    assert set(session.done[1]) == set(session.done[2]) == {0, 1, 1000}
    session.step(0)
    session.step(0)
    assert session.done[0][1].error == ""
    assert "the ranks disagree" in session.done[0][2].error


@_MODES
def test_ranks_that_go_on_after_a_disagreement_have_one_error_each(mode, on_lag):
    session = Steps(3, mode, on_lag=on_lag)
    session.step(0, 1, 2)
    session.make(2, "loss", 0, "exact")
    session.step_until_all_fail()
    session.run(2.0)
    failed = [sum(done.error != "" for done in x.values()) for x in session.done]
    # All meet in other calls, in which rank 2 is late.
    for sequence in range(10, 14):
        for rank in (0, 1, 2):
            session.make(rank, "more", sequence, mode)
            session.run(0.2)
    for rank in range(3):
        session.make(rank, "end", 20, "exact")
    session.run(1.0)
    assert [
        sum(done.error != "" for done in x.values()) for x in session.done
    ] == failed
    assert failed == [1, 1, 1]
