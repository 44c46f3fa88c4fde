"""Coded training takes the steps of uncoded training, in the time of the ranks in time.

Its parameters are compared with those of training in mode "exact", in which all ranks
are in time.
"""

import itertools

import pytest
import ranks

# The error of parameters after some steps: equal sums in another order.
_ERROR_MAX = 1e-5

# Chosen: no call may end by it, however busy the machine is.
_OPTIONS = {"deadline_s": 20, "peer_timeout_s": 60}


def _check(started: ranks.Ranks, in_time: list[int], late: list[int]) -> None:
    for rank in (started[i] for i in in_time):
        (error,) = rank.lines("error")
        assert float(error) < _ERROR_MAX, started.describe()
        assert rank.lines("inexact") == ["0"], started.describe()
        assert float(rank.lines("longest")[0]) < _OPTIONS["deadline_s"] / 2
        without = dict(line.split() for line in rank.lines("without"))
        for i in late:
            assert int(without[str(i)]) > 5, started.describe()
    for a, b in itertools.combinations(in_time, 2):
        assert started[a].lines("bits") == started[b].lines("bits")


def test_a_sleeping_rank_of_each_cluster_delays_and_changes_nothing(tmp_path):
    arguments = ("10", "repetition", "1,3", "-1")
    with ranks.start(
        "coded", *arguments, folder=tmp_path, world_size=4, options=_OPTIONS
    ) as started:
        started.succeed()
        _check(started, [0, 2], [1, 3])
        # The sleeping ranks were in the middle of their steps.
        for i in (0, 2):
            begun = started[i].lines("ended")[0].split()
            assert all(int(step) < 9 for step in begun), started.describe()


@pytest.mark.long
@pytest.mark.parametrize("code", ["repetition", "cyclic"])
def test_a_killed_rank_changes_nothing_in_50_steps(tmp_path, code):
    sleeping = "1" if code == "repetition" else ""
    arguments = ("50", code, sleeping, "3")
    with ranks.start(
        "coded", *arguments, folder=tmp_path, world_size=4, options=_OPTIONS
    ) as started:
        started.wait()
        in_time = [0, 2] if sleeping else [0, 1, 2]
        assert all(started[i].code == 0 for i in in_time), started.describe()
        _check(started, in_time, [3])
