"""`status --coordinator` on jobs whose ranks are stuck, killed and started again."""

import json
import time

import pytest
import ranks

from jax_optireduce import __main__


@pytest.fixture
def await_ranks(capsys):
    """Asks the coordinator of a job until its ranks are as expected.

    Returns the exit code, and the ranks in the order in which they are shown.
    """

    def run(started: ranks.Ranks, until) -> tuple[int, list[dict]]:
        coordinator = started[0].environment["JAX_OPTIREDUCE_COORDINATOR"]
        end = time.monotonic() + ranks.TIME_LIMIT_S
        while True:
            capsys.readouterr()
            code = __main__.main(["status", "--coordinator", coordinator, "--json"])
            out = capsys.readouterr().out
            shown = json.loads(out)["ranks"] if out else []
            if shown and until({rank["rank"]: rank for rank in shown}):
                return code, shown
            assert time.monotonic() < end, f"{shown}\n{started.describe()}"
            time.sleep(0.1)

    return run


def _states(*expected):
    return lambda shown: tuple(shown[i]["state"] for i in sorted(shown)) == expected


def test_stuck_ranks_are_shown_with_the_reason_before_those_that_wait(
    tmp_path, await_ranks
):
    go = tmp_path / "go"
    with ranks.start(
        *("stuck", str(go)),
        folder=tmp_path,
        world_size=5,
        options={"peer_timeout_s": 10_000},
        coordinator=True,
    ) as started:
        code, shown = await_ranks(
            started,
            lambda shown: all(
                rank["state"] == "running" and rank["calls_completed"] == 1
                for rank in shown.values()
            ),
        )
        assert code == 0
        for rank in shown:
            assert rank["pid"] == started[rank["rank"]].process.pid
            assert (rank["life"], rank["session"], rank["step"]) == (1, 0, None)
            assert (rank["live_processes"], rank["participation"]) == (5, 1.0)
        go.touch()
        code, shown = await_ranks(
            started,
            lambda shown: (
                _states("running", "silent", "silent", "away", "running")(shown)
                and shown[0]["waiting_for"] == shown[4]["waiting_for"] == [1, 2, 3]
            ),
        )
    assert code == 1
    assert [rank["rank"] for rank in shown] == [3, 1, 2, 0, 4]
    for rank in shown[:3]:
        assert "ranks 0 and 4 wait for it" in rank["unusual"]["waited for"]
        assert "which it has not entered" in rank["unusual"]["waited for"]
    for rank in shown[3:]:
        assert rank["call"].startswith("call 1 of 'grads")
        assert rank["unusual"]["in call"].endswith(", waits for ranks 1, 2 and 3")


def test_replicas_are_shown_from_their_start_on(tmp_path, await_ranks):
    with ranks.start(
        *("replicated", "exact"),
        folder=tmp_path,
        world_size=2,
        options={"peer_timeout_s": 2.0, "replicas_min": 2},
        replicas=True,
    ) as started:
        started.add()
        code, shown = await_ranks(
            started,
            lambda shown: (
                _states("running", "running", "running")(shown)
                and all(rank["live_processes"] == 3 for rank in shown.values())
            ),
        )
        assert code == 0
        assert len({rank["replica"] for rank in shown}) == 3
        started[1].process.kill()
        _, shown = await_ranks(
            started,
            lambda shown: any(rank["state"] == "away" for rank in shown.values()),
        )
        assert shown[0]["replica"] == started[1].environment["JAX_OPTIREDUCE_REPLICA"]


def test_a_killed_rank_is_away_and_its_next_life_goes_on_in_the_next_session(
    tmp_path, await_ranks
):
    with ranks.start(
        *("returning", "0.03"),
        folder=tmp_path,
        world_size=3,
        options={"peer_timeout_s": 2.0, "deadline_s": 0.5},
        coordinator=True,
    ) as started:
        started.wait_for(2, "step 20")
        await_ranks(started, _states("running", "running", "running"))
        started[2].process.kill()
        code, shown = await_ranks(
            started,
            lambda shown: (
                _states("running", "running", "away")(shown)
                and shown[0]["live_processes"] == shown[1]["live_processes"] == 2
            ),
        )
        assert (code, shown[0]["rank"]) == (1, 2)
        started.start_again(2)
        _, shown = await_ranks(
            started,
            lambda shown: (
                _states("running", "running", "running")(shown)
                and all(
                    (rank["session"], rank["live_processes"]) == (1, 3)
                    and rank["step"] is not None
                    for rank in shown.values()
                )
            ),
        )
        lives = {rank["rank"]: rank["life"] for rank in shown}
        assert lives == {0: 1, 1: 1, 2: 2}
        assert all(rank["step"] > 0 for rank in shown)
        started.write("last", str(max(rank["step"] for rank in shown) + 200))
        started.succeed()
        code, shown = await_ranks(started, _states("ended", "ended", "ended"))
    assert code == 1, "no process of the job lives"
    assert {rank["reason"] for rank in shown} == {
        "the program called jax_optireduce.shutdown()"
    }
