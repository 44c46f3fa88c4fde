"""Threads for completions: a blocked task never delays another."""

import time

import optireduce_testing as native


def test_tasks_that_block_do_not_keep_others_waiting():
    pool = native.CompletionPool()
    for task in range(20):
        pool.run(task)
    assert sorted(pool.begun(20)) == list(range(20))
    assert pool.counters()["waited"] == 0


def test_a_task_beyond_the_most_threads_waits_for_one_and_then_runs():
    pool = native.CompletionPool(threads_max=2)
    for task in range(3):
        pool.run(task)
    assert sorted(pool.begun(2)) == [0, 1]
    assert pool.counters()["waited"] == 1
    pool.release(0)
    assert pool.begun(3)[2] == 2
    assert pool.counters()["threads_peak"] == 2


def test_a_thread_that_has_nothing_to_do_takes_the_next_task():
    pool = native.CompletionPool()
    for task in range(200):
        pool.run(task)
        pool.release(task)
        pool.ended(task + 1)
    assert pool.counters()["threads_peak"] < 50


def test_threads_that_are_idle_for_long_end_but_for_one():
    pool = native.CompletionPool(idle_s=0.01)
    for task in range(5):
        pool.run(task)
    pool.begun(5)
    for task in range(5):
        pool.release(task)
    while pool.counters()["threads"] > 1:
        time.sleep(0.01)
    time.sleep(0.05)
    assert pool.counters()["threads"] == 1
    pool.run(5)
    assert pool.begun(6)[5] == 5


def test_what_was_given_before_the_end_of_the_pool_is_run():
    pool = native.CompletionPool(threads_max=1, shutdown_s=0.01)
    for task in range(5):
        pool.run(task)
    pool.begun(1)
    # The end does not wait for the first one, behind which are the others.
    pool.close()
    for task in range(5):
        pool.release(task)
    assert pool.ended(5) == list(range(5))


def test_the_end_of_the_pool_does_not_wait_for_a_task_that_blocks():
    pool = native.CompletionPool(shutdown_s=0.01)
    pool.run(0)
    pool.begun(1)
    pool.close()
    pool.release(0)
    assert pool.ended(1) == [0]
