"""Replicas: processes that JAX does not connect, of any number."""

import signal
import time

import ranks

_OPTIONS = {"peer_timeout_s": 2.0}


def _start(folder, world_size, mode, **options):
    given = {**_OPTIONS, **options}
    return ranks.start(
        *("replicated", mode),
        folder=folder,
        world_size=world_size,
        options=given,
        replicas=True,
    )


def _sizes(rank: ranks.Rank) -> list[int]:
    """Returns the numbers of replicas in the sums, without repetitions."""
    sizes = [int(line.split()[1]) for line in rank.lines("step")]
    return [x for x, before in zip(sizes, [0, *sizes], strict=False) if x != before]


def _await_size(started: ranks.Ranks, rank: int, size: int) -> None:
    end = time.monotonic() + ranks.TIME_LIMIT_S
    while _sizes(started[rank])[-1:] != [size]:
        assert time.monotonic() < end, started.describe()
        time.sleep(0.02)


def _finish(started: ranks.Ranks, *numbers: int) -> None:
    """Ends the training of these replicas, which have the same bits in each step."""
    for i in numbers:
        started.wait_for(i, "step")
    newest = [int(started[i].lines("step")[-1].split()[0]) for i in numbers]
    started.write("last", str(max(newest) + 40))
    started.succeed(*numbers)
    for i in numbers:
        assert started[i].lines("end") == ["0"], started.describe()


def _assert_equal_bits(started: ranks.Ranks) -> None:
    """Checks that the sums of a step of so many replicas had the same bits on all."""
    bits: dict[tuple[str, ...], set[str]] = {}
    for rank in started:
        for line in rank.lines("step"):
            *step, digest = line.split()
            bits.setdefault(tuple(step), set()).add(digest)
    assert all(len(of) == 1 for of in bits.values()), started.describe()


def test_replicas_come_and_go_without_a_compilation(tmp_path):
    with _start(tmp_path, 2, "exact") as started:
        _await_size(started, 0, 2)
        third = started.add()
        _await_size(started, 0, 3)
        for rank in (1, third):
            started[rank].process.send_signal(signal.SIGTERM)
        # Its call fails, and it joins again.
        _await_size(started, 0, 1)
        for rank in (1, third):
            started.start_again(rank)
        started.add()
        _await_size(started, 0, 4)
        _finish(started, 0, 1, 2, 3)
        _assert_equal_bits(started)


def test_a_dead_replica_is_removed_and_comes_back(tmp_path):
    with _start(tmp_path, 3, "bounded", deadline_s=0.5, replicas_min=3) as started:
        started.wait_for(0, "step 20")
        started[1].process.kill()
        started.start_again(1)
        end = time.monotonic() + ranks.TIME_LIMIT_S
        while len(started[1].lines("joined")) < 2:
            assert time.monotonic() < end, started.describe()
            time.sleep(0.02)
        _finish(started, 0, 1, 2)
        first, again = (line.split() for line in started[1].lines("joined"))
        # Its name has its place for good.
        assert again[1:] == first[1:]


def test_replicas_whose_calls_have_failed_begin_again_with_the_newest_state(tmp_path):
    with _start(tmp_path, 3, "exact", replicas_min=2) as started:
        started.wait_for(0, "step 10")
        _await_size(started, 0, 3)
        started[2].process.kill()
        # Two are left, whose calls fail, and none may go on alone.
        started.wait_for(0, "error")
        for rank in (0, 1):
            end = time.monotonic() + ranks.TIME_LIMIT_S
            while len(started[rank].lines("joined")) < 2:
                assert time.monotonic() < end, started.describe()
                time.sleep(0.02)
            number, _, size = map(int, started[rank].lines("joined")[1].split())
            assert number >= 10, started.describe()
            assert size == 2, started.describe()
        _finish(started, 0, 1)
        _assert_equal_bits(started)


def test_the_coordinator_may_be_started_again(tmp_path):
    with _start(tmp_path, 2, "exact", replicas_min=2) as started:
        started.wait_for(0, "step 10")
        old = started.coordinators[-1]
        old.kill()
        old.wait()
        started.wait_for(0, "step 30")
        with (tmp_path / "coordinator.txt").open("ab") as output:
            again = ranks.Forked(old.args[1:], output, started[0].environment)
        started.coordinators.append(again)
        started.add()
        _await_size(started, 0, 3)
        _finish(started, 0, 1, 2)
        _assert_equal_bits(started)


def test_programs_of_several_devices_make_calls_over_replicas(tmp_path):
    with ranks.start(
        "replicated_meshes",
        folder=tmp_path,
        world_size=2,
        devices=2,
        options={"replicas_min": 2},
        replicas=True,
    ) as started:
        started.succeed()
        for rank in started:
            assert rank.lines("done") == [""], started.describe()
