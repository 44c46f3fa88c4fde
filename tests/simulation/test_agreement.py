"""Ranks die, stop and come back, in virtual time."""

import plan_simulation
import pytest

from jax_optireduce._session import agreement, plans

# Seeds beyond those of the first test, and whether of replicas, with the defect that
# they have found.
REGRESSIONS = {
    (363, False): "a process that was replaced proposed one plan after the other",
    (1005, False): "a stopped process had the state of an earlier session",
    (13652, False): "a process that died while it removed old entries left some",
    (410, True): "a rank ended with an error since the number of a life was lost",
}


@pytest.mark.parametrize("replicas", [False, True], ids=["ranks", "replicas"])
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_ranks_that_die_in_any_moment_come_back(first, replicas):
    back = 0
    for seed in range(first, first + 50):
        simulation = plan_simulation.Simulation(seed, replicas=replicas)
        simulation.run()
        back += simulation.returns
    assert back > 100


@pytest.mark.parametrize(("seed", "replicas"), REGRESSIONS)
def test_seeds_that_have_found_a_defect_pass(seed, replicas):
    plan_simulation.Simulation(seed, replicas=replicas).run()


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
