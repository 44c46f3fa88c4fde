"""Ranks die, stop and come back, in virtual time."""

import heapq

import plan_simulation
import pytest

from jax_optireduce._errors import RendezvousError
from jax_optireduce._session import agreement, plans


@pytest.mark.parametrize("replicas", [False, True], ids=["ranks", "replicas"])
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_ranks_that_die_in_any_moment_come_back(first, replicas):
    back = 0
    for seed in range(first, first + 50):
        simulation = plan_simulation.Simulation(seed, replicas=replicas)
        simulation.run()
        back += simulation.returns
    assert back > 100


@pytest.mark.parametrize("moment", plan_simulation.MOMENTS)
@pytest.mark.parametrize("kind", plan_simulation.REPLICA_KINDS)
def test_a_fault_may_come_at_each_entry(moment, kind):
    for seed in range(3):
        simulation = plan_simulation.Simulation(
            seed, faults=4, replicas=True, armed={moment: kind}
        )
        simulation.run()


def _kill_later(simulation, armed):
    """Kills a replica once all train; a fault comes as it comes back."""

    def kill():
        simulation.armed.update(armed)
        simulation.end(simulation.processes[2], "killed")

    simulation.at(5.0, kill)


def test_no_process_begins_anew_before_a_new_coordinator_knows_the_others():
    for seed in range(30):
        simulation = plan_simulation.Simulation(seed, ranks=4, faults=0, replicas=True)
        simulation.least = 1
        _kill_later(simulation, {"wishes": "restart"})
        simulation.run()


def test_a_new_coordinator_does_not_admit_a_process_that_came_too_late():
    simulation = plan_simulation.Simulation(1, ranks=3, faults=0, replicas=True)
    simulation.least, simulation.state_bytes = 3, 1e9
    # A little more than the others wait.
    longest_s = agreement.LEVEL_S + 1e9 / agreement.LEVEL_BYTES_PER_S
    transfers_s = iter([0.1] * 4 + [longest_s + 1.0] * 2)
    simulation.transfer_s = lambda: next(transfers_s, 0.1)
    _kill_later(simulation, {"level": "restart"})
    simulation.run()
    assert any("its entries are gone" in line for line in simulation.log)


def test_a_process_that_was_stopped_does_not_wait_for_a_state_that_is_gone():
    for seed in range(30):
        simulation = plan_simulation.Simulation(seed, ranks=3, faults=0, replicas=True)
        simulation.least, simulation.state_bytes = 3, 1e3
        _kill_later(simulation, {"moved": "stop", "level": "restart"})
        simulation.run()


def test_a_replica_that_was_stopped_ends_once_others_have_begun_anew():
    simulation = plan_simulation.Simulation(1, ranks=1, faults=0, replicas=True)

    def stop():
        simulation.ranks = 2
        simulation.processes[0].stopped_s = simulation.now
        simulation._start(1)

    simulation.at(5.0, stop)
    simulation.at(60.0, lambda: simulation._wake(simulation.processes[0]))
    simulation.run()
    assert any("without this process" in line for line in simulation.log)


def test_a_program_of_long_steps_is_not_taken_for_gone():
    for seed in range(5):
        simulation = plan_simulation.Simulation(seed, ranks=3, faults=0, replicas=True)
        simulation.step_s = 40.0
        simulation.run()
        assert not any("none is left" in line for line in simulation.log)


def test_a_replica_does_not_wait_for_those_that_its_session_has_missed():
    simulation = plan_simulation.Simulation(1, ranks=2, faults=0, replicas=True)
    simulation.least = 1

    def leave():
        simulation._strike("leave", simulation.processes[1])
        simulation.processes[0].session.left.clear()

    simulation.at(10.0, leave)
    simulation.run()
    (back,) = [line for line in simulation.log if "is back" in line][2:]
    joined_s = 10.0 + plan_simulation.CALL_TIMEOUT_S + 2 * agreement.OPEN_S
    assert float(back.split()[0]) < joined_s + 10.0


def _part(members, least=3):
    """Returns rank 0 of a job, with these members of its session."""
    simulation = plan_simulation.Simulation(1)
    world = plan_simulation.World(simulation, simulation._new(0))
    return simulation, agreement.Agreement(world, 0, 1, least, 1, 0, members)


def _run(simulation, task):
    """Returns the result of a task of rank 0."""
    results = []

    async def run():
        results.append(await task)

    simulation.start(simulation.processes[0], run())
    while simulation._events:
        simulation.now, _, action = heapq.heappop(simulation._events)
        action()
    return results[0]


def _entries_after_a_poll(members, entries):
    """Returns the entries after a poll of rank 0, with these members."""
    simulation, part = _part(members)
    simulation.store |= entries
    _run(simulation, part.poll())
    return simulation.store


def test_a_process_without_a_place_takes_no_part_in_plans():
    # It had no time to come back: its wish is left.
    after = _entries_after_a_poll({}, {plans.wish_key(0, 1): b"1"})
    assert not [key for key in after if "plan" in key]


def test_a_member_with_an_old_wish_does_not_begin_anew():
    own = plans.Member(1, 1)
    plan = plans.Plan(2, 1, {0: own, 1: plans.Member(2, 1)}, [0], 1)
    entries = {plans.key(2, "plan"): plan.encoded(), f"{plans.NEWS}/plan": b"2"}
    after = _entries_after_a_poll({0: own, 1: plans.Member(1, 1)}, entries)
    assert after.keys() == entries.keys() | {f"{plans.NEWS}/lives/0"}


_MEMBERS = {rank: plans.Member(1, 0) for rank in range(3)}


def test_no_process_begins_anew_while_others_open_a_session():
    simulation, part = _part({}, least=1)
    plan = plans.Plan(1, 1, {1: plans.Member(1, 1), 2: plans.Member(1, 1)}, [2], 1)
    simulation.store[plans.key(1, "plan")] = plan.encoded()
    simulation.store[f"{plans.NEWS}/plan"] = b"1"
    with pytest.raises(RendezvousError, match="not admitted"):
        _run(simulation, part.come_back(1.5 * agreement.OPEN_S))
    assert plans.key(2, "plan") not in simulation.store


def test_a_program_that_has_given_up_a_plan_does_not_use_it_later():
    simulation, part = _part(_MEMBERS)
    part.coming = plans.Coming(plans.Plan(1, 1, _MEMBERS, [2], 1), None, stop=5)
    assert _run(simulation, part.admit(lambda: 5)) is None
    # The thread has read it in a coordinator that has ended since.
    part.coming.begins = 5
    assert _run(simulation, part.admit(lambda: 6)) is None
    _run(simulation, part.poll())
    assert part.coming is None


def test_a_program_uses_the_decision_that_its_thread_knows():
    simulation, part = _part(_MEMBERS)
    coming = plans.Coming(plans.Plan(1, 1, _MEMBERS, [2], 1), None, stop=5)
    part.coming = coming
    simulation.at(1.0, lambda: setattr(coming, "begins", 5))
    assert _run(simulation, part.admit(lambda: 5)) is coming


def test_a_seed_is_the_same_run_again():
    first, second = plan_simulation.Simulation(7), plan_simulation.Simulation(7)
    first.run()
    second.run()
    assert first.log == second.log


def test_32_ranks_come_back():
    simulation = plan_simulation.Simulation(1, ranks=32, faults=20)
    simulation.run()
    assert simulation.returns >= 5
