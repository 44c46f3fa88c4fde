"""A program ends after its dispatched calls, on all ranks alike."""

import re
import signal

import pytest
import ranks


@pytest.mark.parametrize("mode", ["exact", "bounded"])
def test_steps_in_flight_at_the_end_of_a_script_are_finished(tmp_path, mode):
    _check_finished("script", mode, tmp_path)


@pytest.mark.parametrize("how", ["shutdown", "with", "thread", "set_mesh"])
def test_steps_in_flight_are_finished_in_every_way_to_end(tmp_path, how):
    _check_finished(how, "exact", tmp_path)


def test_steps_in_flight_on_several_devices_are_finished(tmp_path):
    _check_finished("function", "exact", tmp_path, devices=2)


def _check_finished(how, mode, folder, **arguments):
    with ranks.start(
        "exits", how, mode, folder=folder, world_size=2, **arguments
    ) as started:
        started.succeed()
        assert len(started[0].lines("last")) == 1, started.describe()
        assert not any("given up" in rank.output for rank in started)


def test_a_call_that_nobody_joins_is_given_up_by_name(tmp_path):
    options = {"shutdown_timeout_s": 2}
    with ranks.start(
        "endings", "alone", folder=tmp_path, world_size=2, options=options
    ) as started:
        # Process 0 stays for a while; JAX aborts the other one at its end.
        started.wait_for(0, "1 call of 'call")
        ranks.happens(tmp_path, "rank 0 gives up")
        started.wait(0)
        assert started[0].code == 0, started.describe()
        (line,) = re.findall(r".*given up.*", started[0].output)
        assert "1 call of 'call" in line
        assert float(re.search(r"given up after (\S+) s", line)[1]) >= 2
        assert "waiting for rank 1" in line
        assert "its process exits" in line
        # The other rank is alive and is informed.
        started.wait_for(1, "error")
        said = r"rank 0 has (left|stopped with this error): its process exits"
        assert re.search(said, started[1].output), started[1].output


def test_process_0_does_not_wait_long_for_a_rank_that_was_aborted(tmp_path):
    options = {"shutdown_timeout_s": 10_000, "peer_timeout_s": 4}
    with ranks.start(
        "endings", "abort", folder=tmp_path, world_size=3, options=options
    ) as started:
        started.wait()
        codes = [rank.code for rank in started]
        assert codes == [0, -signal.SIGABRT, 0], started.describe()


def test_an_error_does_not_wait_for_what_was_dispatched(tmp_path):
    options = {"shutdown_timeout_s": 10_000}
    with ranks.start(
        "endings", "error in flight", folder=tmp_path, world_size=2, options=options
    ) as started:
        started.wait(1)
        ranks.happens(tmp_path, "rank 1 has ended")
        started.wait()
        assert started[1].code == 1
        assert re.search(r"1 call of 'call.*: given up", started[1].output)
        assert started[0].code == 1, started.describe()
        assert re.search(r"\brank 1\b has (left|stopped)", started[0].output)


def test_with_a_coordinator_process_0_waits_for_no_other(tmp_path):
    options = {"shutdown_timeout_s": 10_000, "peer_timeout_s": 10_000}
    with ranks.start(
        *("endings", "abort"),
        folder=tmp_path,
        world_size=3,
        options=options,
        coordinator=True,
    ) as started:
        started.wait()
        codes = [rank.code for rank in started]
        assert codes == [0, -signal.SIGABRT, 0], started.describe()
