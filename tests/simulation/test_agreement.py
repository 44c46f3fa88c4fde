"""Ranks die, stop and come back, in virtual time."""

import plan_simulation
import pytest

from jax_optireduce._session import agreement, plans

# Seeds that have found a defect, with it.
REGRESSIONS = {
    3: "a drain without a majority waited for ever",
    124: "a plan was made for the session before",
    134: "rank 0 proposed one plan after the other for its earlier attempt",
    245: "a process waited for the state of ranks that had all died",
    363: "a process that was replaced proposed one plan after the other",
    1005: "a stopped process had the state of an earlier session",
    13652: "a process that died while it removed old entries left some for ever",
}


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_ranks_that_die_in_any_moment_come_back(first):
    back = 0
    for seed in range(first, first + 50):
        simulation = plan_simulation.Simulation(seed)
        simulation.run()
        back += simulation.returns
    assert back > 100


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_have_found_a_defect_pass(seed):
    plan_simulation.Simulation(seed).run()


# Seeds of replicas, with the defect that such a run has shown.
REGRESSIONS_OF_REPLICAS = {
    1: "a process waited for ever for a state whose entries were gone",
    21: "a process began the job anew while others, whose wishes it saw, had begun it",
    58: "a source that gave its state for long was taken for dead",
    132: "a process was level after the entry that refused it was lost",
    251: "a lost plan hid all later ones from those that wait",
    410: "a rank ended with an error since the number of a life was lost",
}


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_replicas_that_die_in_any_moment_come_back(first):
    back = 0
    for seed in range(first, first + 50):
        simulation = plan_simulation.Simulation(seed, replicas=True)
        simulation.run()
        back += simulation.returns
    assert back > 100


@pytest.mark.parametrize("seed", REGRESSIONS_OF_REPLICAS)
def test_seeds_of_replicas_that_have_found_a_defect_pass(seed):
    plan_simulation.Simulation(seed, replicas=True).run()


def test_a_process_without_a_place_takes_no_part_in_plans():
    simulation = plan_simulation.Simulation(1)
    process = simulation._new(0)
    world = plan_simulation.World(simulation, process)
    part = agreement.Agreement(world, 0, 1, 3, 1, 0, {})
    # It had no time to come back: its wish is left.
    simulation.store[plans.wish_key(0, 1)] = b"1"
    simulation.start(process, part.poll())
    while simulation._events:
        _, _, action = simulation._events.pop(0)
        action()
    assert not [key for key in simulation.store if "plan" in key]


def test_a_seed_is_the_same_run_again():
    first, second = plan_simulation.Simulation(7), plan_simulation.Simulation(7)
    first.run()
    second.run()
    assert first.log == second.log


def test_32_ranks_come_back():
    simulation = plan_simulation.Simulation(1, ranks=32, faults=20)
    simulation.run()
    assert simulation.returns >= 5
