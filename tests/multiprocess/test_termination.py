"""SIGTERM ends a process in order, and a handler of the program stays in force."""

import re
import signal
import time

import pytest
import ranks

_CODE = 128 + signal.SIGTERM

# The exit code of a process that cannot end itself.
_BY_SIGNAL = -signal.SIGTERM


def _terminate(started, *which):
    for i in which:
        started.wait_for(i, "ready")
    for i in which:
        started[i].process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("what", ["waits", "trains"])
def test_all_ranks_end_in_order(tmp_path, what):
    with ranks.start("terminated", what, folder=tmp_path, world_size=2) as started:
        _terminate(started, 0, 1)
        started.wait()
        for rank in started:
            # An error of a call that the signal ended may come first. On a busy machine
            # the interpreter's end may take longer than its limit.
            assert rank.code in (_CODE, _BY_SIGNAL, 1), started.describe()
            assert rank.lines("cleaned up") == [""], started.describe()
            assert "SIGTERM ends this process" in rank.output


@pytest.mark.parametrize("what", ["computes", "dispatched"])
def test_a_computation_that_does_not_end_is_ended(tmp_path, what):
    with ranks.start("terminated", what, folder=tmp_path, world_size=2) as started:
        started.wait_for(0, "computes")
        started.wait_for(1, "computes")
        time.sleep(0.5)  # The main thread waits in XLA, or sleeps.
        _terminate(started, 0, 1)
        started.wait()
        codes = {rank.code for rank in started}
        # JAX may end without waiting for its programs, if the interpreter regains
        # control.
        expected = {_BY_SIGNAL} if what == "computes" else {_BY_SIGNAL, _CODE}
        assert codes <= expected, started.describe()


@pytest.mark.parametrize("when", ["", "before"])
def test_a_signal_to_another_thread_ends_a_sleep_of_the_main_thread(tmp_path, when):
    arguments = ("terminated", "sleeps, signalled elsewhere", when)
    with ranks.start(*arguments, folder=tmp_path, world_size=2) as started:
        for i in (0, 1):
            started.wait_for(i, "ready")
        time.sleep(0.5)  # The main threads sleep.
        # The other way round, rank 0 would have to outlast the end of rank 1.
        for i in (1, 0):
            ranks.happens(tmp_path, f"signal {i}")
            started.wait(i)
        for rank in started:
            # On a busy machine the interpreter's end may take longer than its limit.
            codes = (0,) if when else (_CODE, _BY_SIGNAL)
            assert rank.code in codes, started.describe()
            assert rank.lines("saved after") == (["SIGTERM"] if when else [])
            assert rank.lines("cleaned up") == [""], started.describe()


def test_the_exit_code_is_that_of_the_signal_where_a_hook_loses_the_exit(tmp_path):
    arguments = ("terminated", "loses the exit")
    with ranks.start(*arguments, folder=tmp_path, world_size=2) as started:
        started.wait()
        assert "Exception ignored in" in started[0].output, started.describe()
        assert "its process received SIGTERM" in started[0].lines("error")[0]
        assert started[0].code in (_CODE, _BY_SIGNAL), started.describe()


def test_peers_learn_the_reason(tmp_path):
    with ranks.start("terminated", "waits", folder=tmp_path, world_size=2) as started:
        started.wait_for(0, "ready")
        _terminate(started, 1)
        started.wait()
        assert started[1].code in (_CODE, _BY_SIGNAL), started.describe()
        assert started[0].code == 1, started.describe()
        (line,) = started[0].lines("error")
        said = (
            r"rank 1 has (left|stopped with this error): its process received SIGTERM"
        )
        assert re.search(said, line), line


@pytest.mark.parametrize(("what", "when"), [("sleeps", "before"), ("trains", "after")])
def test_a_handler_of_the_program_stays_in_force(tmp_path, what, when):
    arguments = ("terminated", what, when)
    with ranks.start(*arguments, folder=tmp_path, world_size=2) as started:
        _terminate(started, 0, 1)
        started.wait()
        for rank in started:
            # On a busy machine the end of rank 0 may fail a call of the other, and end
            # its program, before that has the signal.
            if (
                rank is started[1]
                and what == "trains"
                and "rank 0 has left" in rank.output
            ):
                continue
            assert rank.lines("saved after") == ["SIGTERM"], started.describe()
            assert "SIGTERM ends this process" not in rank.output
        if what == "sleeps":
            assert [rank.code for rank in started] == [0, 0], started.describe()


def test_a_program_that_asks_when_it_is_preempted_goes_on_until_then(tmp_path):
    arguments = ("terminated", "trains", "preemption")
    with ranks.start(*arguments, folder=tmp_path, world_size=2) as started:
        started.wait_for(0, "trains")
        started.wait_for(1, "trains")
        started[1].process.send_signal(signal.SIGTERM)
        started.succeed()
        steps = [rank.lines("saved at step") for rank in started]
        assert steps[0] == steps[1] != [], started.describe()


def test_the_end_of_a_forked_process_is_no_end_of_the_session(tmp_path):
    with ranks.start("forked", folder=tmp_path, world_size=2) as started:
        started.succeed()
        for rank in started:
            assert rank.lines("child") == [str(_BY_SIGNAL)], started.describe()
            assert rank.lines("sum") == ["2.0"], started.describe()
