"""Learned deadlines: the data that they cover, and their bounds."""

import statistics

import numpy as np
import pytest
from session import SECRET, Session

import optireduce_testing as native
from jax_optireduce import _native

# Source: kCalibrationCalls; and a few more for the data under way.
MEASURED_CALLS = 25
SMALL = (
    "seed=1 ranks=4 elements=2048 sequential=1 faults_end_us=60000000 "
    "late_budget_ppm=10000"
)


def late_share(line: str) -> float:
    """The late share of the calls after the calibration."""
    report = _native.simulate(line)
    assert report["ok"], report["failure"]
    return statistics.fmean(call["late"] for call in report["calls"][MEASURED_CALLS:])


@pytest.mark.parametrize("bound_ms", [15, 200])
def test_a_bounded_call_has_the_time_of_both_its_stages(bound_ms):
    # Each stage takes 10 ms, so that either bound has room for both.
    deadlines = (
        f"reduce_scatter_deadline_us={bound_ms}000 all_gather_deadline_us={bound_ms}000"
    )
    assert late_share(f"{SMALL} calls=60 mode=bounded delay_us=5000 {deadlines}") == 0


def test_a_lossy_call_has_room_for_programs_that_are_late_now_and_then():
    # One start in ten is up to 15 ms late, and a call takes 40 ms.
    line = (
        f"{SMALL} calls=150 mode=lossy delay_us=10000 straggle_ppm=100000 "
        "straggle_us=15000 reduce_scatter_deadline_us=200000 "
        "all_gather_deadline_us=200000"
    )
    assert late_share(line) < 1e-3


@pytest.mark.parametrize("ranks", [8, 16])
@pytest.mark.parametrize("elements", [1, 4])
def test_ranks_wait_for_the_few_that_own_the_shards_of_a_small_bucket(elements, ranks):
    # Starts differ by up to 20 ms, so sums that wait for all ranks begin late.
    line = (
        f"seed=1 ranks={ranks} elements={elements} calls=150 sequential=1 mode=bounded "
        "compute_us=50000 think_us=20000 fill=floats late_budget_ppm=100000 "
        "reduce_scatter_deadline_us=5000000 all_gather_deadline_us=5000000"
    )
    assert late_share(line) < 0.1


# The bound of the deadlines. The network delivers at once: learned ones are shorter.
BOUND_S = 0.1


class Next(Session):
    """Learning ranks, in a session that may follow another one."""

    def __init__(self, session: int = 77, *, absent: int | None = None):
        super().__init__(4, "bounded", late_budget=0.01, session=session)
        self.present = [rank for rank in range(4) if rank != absent]
        self.silent = {absent} - {None}
        for rank in self.present if self.silent else ():
            self.ranks[rank] = native.Endpoint(
                rank, 4, SECRET, late_budget=0.01, session=session, absent=[absent]
            )

    def continue_from(self, earlier: Session, ranks: tuple[int, ...] = (0, 1, 2)):
        for rank in ranks:
            self.ranks[rank].continue_from(earlier.ranks[rank])

    def deadlines(self, sequence: int, **collective) -> list[float]:
        """Makes a call; returns its deadline on each rank."""
        for rank in self.present:
            array = np.ones(300, np.float32)
            refused = self.submit(rank, array, sequence=sequence, **collective)
            assert refused == ""
        self.run(2 * BOUND_S)
        return [self.done[rank].pop(sequence).deadline for rank in self.present]


@pytest.fixture(scope="module")
def earlier() -> Session:
    """Ranks that have learned the deadlines of a collective."""
    session = Next()
    deadlines = [session.deadlines(sequence) for sequence in range(MEASURED_CALLS)]
    assert deadlines[0] == [BOUND_S] * 4
    assert max(deadlines[-1]) < BOUND_S / 100
    return session


def test_ranks_go_on_with_the_deadlines_of_the_session_before(earlier):
    session = Next(78)
    session.continue_from(earlier)
    *others, newcomer = session.deadlines(0)
    assert max(others) < BOUND_S / 100
    assert newcomer == BOUND_S
    for sequence in range(1, MEASURED_CALLS):
        deadlines = session.deadlines(sequence)
    assert max(deadlines) < BOUND_S / 100


def test_deadlines_go_over_to_a_session_with_an_empty_place_and_from_it(earlier):
    second, third = Next(78, absent=3), Next(79)
    second.continue_from(earlier)
    assert max(second.deadlines(0)) < BOUND_S / 100
    third.continue_from(second)
    *others, newcomer = third.deadlines(0)
    assert max(others) < BOUND_S / 100
    assert newcomer == BOUND_S


@pytest.mark.parametrize("other", [{"name": "y"}, {"fingerprint": 2}])
def test_another_collective_learns_its_own_deadlines(earlier, other):
    session = Next(78)
    session.continue_from(earlier, (0, 1, 2, 3))
    assert session.deadlines(0, **other) == [BOUND_S] * 4
    assert max(session.deadlines(1)) < BOUND_S / 100


def test_a_call_under_way_keeps_its_deadline_and_the_next_one_continues(earlier):
    session = Next(78)
    session.call(0)
    session.run(0.01)
    session.continue_from(earlier)
    for rank in (1, 2, 3):
        session.call(rank)
    session.run(2 * BOUND_S)
    assert [done.pop(0).deadline for done in session.done] == [BOUND_S] * 4
    assert max(session.deadlines(1)[:3]) < BOUND_S / 100
