"""Ranks that were killed are started again, and take their places in the job."""

import contextlib
import signal
import time

import ranks

_OPTIONS = {"peer_timeout_s": 2.0, "deadline_s": 0.5}

# Steps until all ranks have read the number of the last one. Chosen: a second.
_AHEAD = 40


def _start(folder, world_size, *arguments, coordinator=False, **options):
    return ranks.start(
        *("returning", "0.03", *arguments),
        folder=folder,
        world_size=world_size,
        options={**_OPTIONS, **options},
        coordinator=coordinator,
    )


def _newest(rank: ranks.Rank) -> int:
    """Returns the newest step of a rank."""
    return max((int(line.split()[0]) for line in rank.lines("step")), default=0)


def _await_return(started: ranks.Ranks, rank: int, times: int) -> None:
    """Waits until so many processes of this rank have begun, the first included."""
    end = time.monotonic() + ranks.TIME_LIMIT_S
    while len(started[rank].lines("back")) < times:
        assert time.monotonic() < end, started.describe()
        time.sleep(0.02)


def _finish(started: ranks.Ranks) -> None:
    """Ends the training, and checks that all ranks have the same parameters."""
    last = max(map(_newest, started)) + _AHEAD
    started.write("last", str(last))
    started.succeed()
    bits = {tuple(rank.lines("bits")) for rank in started}
    assert len(bits) == 1, started.describe()
    for rank in started:
        # All take part in the last steps.
        assert rank.lines(f"step {last}") == [str(len(started))], started.describe()


def test_a_killed_rank_comes_back_with_the_state_of_the_others(tmp_path):
    with _start(tmp_path, 4) as started:
        started.wait_for(2, "step 20")
        started[2].process.kill()
        started.start_again(2)
        _await_return(started, 2, 2)
        _finish(started)
        first, second = map(int, started[2].lines("back"))
        assert first == 0 < second, started.describe()
        for rank in (0, 1, 3):
            # The others compile nothing for it.
            assert started[rank].lines("compiled") == ["0"], started.describe()


def test_learned_deadlines_go_over_to_the_next_session(tmp_path):
    deadline_max_s = 2.0
    learned = {"deadline_s": 0.0, "deadline_max_s": deadline_max_s}

    def deadlines(rank: ranks.Rank) -> dict[int, float]:
        numbers = (line.split() for line in rank.lines("deadline"))
        return {int(number): float(seconds) for number, seconds in numbers}

    with _start(tmp_path, 4, **learned) as started:
        started.wait_for(2, "step 40")
        started[2].process.kill()
        started.start_again(2)
        _await_return(started, 2, 2)
        _finish(started)
        _, back = map(int, started[2].lines("back"))
        for rank in (0, 1, 3):
            found = deadlines(started[rank])
            assert found[1] == deadline_max_s
            assert found[40] < deadline_max_s / 2, started.describe()
            first = _moved_at(started, rank) + 1
            assert found[first] < deadline_max_s / 2, started.describe()
        # It measures at first.
        assert deadlines(started[2])[back + 1] == deadline_max_s, started.describe()


def test_the_first_rank_that_comes_back_does_not_wait_for_the_second(tmp_path):
    with _start(tmp_path, 5) as started:
        for rank in (1, 3):
            started.wait_for(rank, "step 20")
            started[rank].process.kill()
        for rank in (3, 1):
            started.start_again(rank)
            _await_return(started, rank, 2)
        lives = {line.split()[1] for line in started[0].lines("step")}
        assert {"5", "4"} <= lives, started.describe()
        _finish(started)


def test_a_rank_that_dies_while_it_comes_back_changes_nothing_for_the_others(tmp_path):
    with _start(tmp_path, 4) as started:
        started.wait_for(2, "step 20")
        started[2].process.kill()
        for attempt in range(4):
            started.start_again(2)
            _await_wish(started, attempt + 1)
            # Some of these are moments of the opening, of the switch, of the state.
            time.sleep(0.15 * attempt)
            started[2].process.kill()
        started.start_again(2)
        _await_wish(started, 5)
        _await_return(started, 2, len(started[2].lines("back")) + 1)
        _finish(started)


def _await_wish(started: ranks.Ranks, times: int) -> None:
    """Waits until so many processes of rank 2 have found that the job runs."""
    end = time.monotonic() + ranks.TIME_LIMIT_S
    text = "the job has begun already"
    while sum(text in line for line in started[2].lines("log")) < times:
        assert time.monotonic() < end, started.describe()
        time.sleep(0.02)


def test_a_process_that_was_replaced_while_it_was_stopped_leaves(tmp_path):
    with contextlib.ExitStack() as stack, _start(tmp_path, 4) as started:
        started.wait_for(2, "step 20")
        old = started[2].process
        stack.callback(old.kill)
        old.send_signal(signal.SIGSTOP)
        started.start_again(2, beside=True)
        _await_return(started, 2, 2)
        old.send_signal(signal.SIGCONT)
        assert old.wait(timeout=ranks.TIME_LIMIT_S) != 0
        _finish(started)
        text = "life 1 was replaced by life 2 of its rank"
        assert any(text in line for line in started[2].lines("log")), started[2].output


def test_a_program_with_another_state_is_refused_and_the_others_train_on(tmp_path):
    with _start(tmp_path, 4) as started:
        started.wait_for(2, "step 20")
        started[2].process.kill()
        started[2].command.append("100")
        started.start_again(2)
        started.wait(2)
        assert started[2].code == 1, started.describe()
        text = "UsageError: the state of this program is not like that of the others"
        assert text in started[2].output, started.describe()
        started[2].command.pop()
        started.start_again(2)
        _await_return(started, 2, 2)
        _finish(started)


def test_a_terminated_rank_is_not_waited_for_and_comes_back(tmp_path):
    with _start(tmp_path, 4, peer_timeout_s=10_000.0) as started:
        started.wait_for(2, "step 20")
        started[2].process.send_signal(signal.SIGTERM)
        started.wait(2)
        step = _newest(started[0])
        started.wait_for(0, f"step {step + 10} 3")
        started.start_again(2)
        _await_return(started, 2, 2)
        _finish(started)


def test_a_rank_that_has_skipped_steps_moves_with_the_others(tmp_path):
    with _start(tmp_path, 4) as started:
        started.wait_for(3, "step 20")
        started[3].process.send_signal(signal.SIGSTOP)
        step = _newest(started[0])
        started.wait_for(0, f"step {step + 30}")
        started[3].process.send_signal(signal.SIGCONT)
        started[2].process.kill()
        started.start_again(2)
        _await_return(started, 2, 2)
        started.wait_for(3, "log rank 2 back in step")
        steps = {rank: _moved_at(started, rank) for rank in (0, 1, 3)}
        # It is behind by its own count, and yet the others have not waited for it.
        assert steps[3] < steps[0], started.describe()


def _moved_at(started: ranks.Ranks, rank: int) -> int:
    """Returns the step, by its count, at which a rank has moved to session 1."""
    started.wait_for(rank, "log rank 2 back in step")
    (line,) = started[rank].lines("log rank 2 back in step")
    return int(line.split(",")[0])


def test_ranks_that_begin_at_different_steps_are_refused(tmp_path):
    with _start(tmp_path, 3, "20000", "different") as started:
        started.wait()
        text = "UsageError: the ranks begin at different steps: rank 0 0, rank 1 1, "
        for rank in started:
            assert rank.code == 1, started.describe()
            assert text in rank.output, started.describe()


def test_with_a_coordinator_process_0_comes_back_too_and_more_than_once(tmp_path):
    with _start(tmp_path, 4, coordinator=True) as started:
        for life in (2, 3):
            started.wait_for(0, "step 20")
            started[0].process.kill()
            started.start_again(0)
            _await_return(started, 0, life)
        _finish(started)


def test_a_process_that_comes_back_after_the_end_is_told(tmp_path):
    with _start(tmp_path, 4, coordinator=True) as started:
        started.wait_for(2, "step 20")
        started[2].process.kill()
        last = max(map(_newest, started)) + _AHEAD
        started.write("last", str(last))
        started.succeed(0, 1, 3)
        started.start_again(2)
        started.wait(2)
        assert "the programs of the others have ended" in started[2].output
