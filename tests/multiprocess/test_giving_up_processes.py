"""A call that one rank gives up ends on all others, which then continue together."""

import re
import signal

import ranks

_CALL_TIMEOUT_S = 2.0


def _assert_all_go_on(started: ranks.Ranks, devices: int = 1) -> None:
    started.succeed()
    for rank in started:
        total = 4.0 * len(started) * devices
        assert rank.lines("sum") == [f"{total:.3f}"] * 3, started.describe()


def test_ranks_go_on_after_calls_that_one_of_them_cancels(tmp_path):
    with ranks.start(
        "giving_up", "cancel", folder=tmp_path, world_size=3, devices=2
    ) as started:
        _assert_all_go_on(started, devices=2)
        assert started[0].lines("error")
        for rank in started[1:]:
            for line in rank.lines("error"):
                assert "the test wants it" in line


def test_ranks_go_on_after_a_program_that_was_interrupted(tmp_path):
    with ranks.start(
        "giving_up", "interrupt", folder=tmp_path, world_size=3
    ) as started:
        started.wait_for(0, "waiting")
        started[0].process.send_signal(signal.SIGINT)
        _assert_all_go_on(started)
        assert started[0].lines("interrupted") == [""]
        for rank in started[1:]:
            (line,) = rank.lines("error")
            assert "rank 0 has stopped with this error" in line


def test_ranks_go_on_after_a_device_of_one_of_them_has_failed(tmp_path):
    options = {"call_timeout_s": _CALL_TIMEOUT_S, "stall_timeout_s": 1}
    with ranks.start(
        "giving_up",
        "device",
        folder=tmp_path,
        world_size=2,
        devices=2,
        options=options,
    ) as started:
        _assert_all_go_on(started, devices=2)
        assert any(
            "of the devices of this process" in e for e in started[0].lines("error")
        )
        said = (
            r"call 1 of 'call.* waits in this process: rank 0 started .* rank 1 not yet"
        )
        assert len(re.findall(said, started[0].output)) == 1, started.describe()
        assert all("rank 0" in e for e in started[1].lines("error"))


def test_a_rank_that_hangs_is_named_after_the_call_timeout(tmp_path):
    options = {"call_timeout_s": _CALL_TIMEOUT_S}
    with ranks.start(
        "giving_up", "hang", folder=tmp_path, world_size=3, options=options
    ) as started:
        _assert_all_go_on(started)
        for rank in started[:2]:
            assert "for rank 2 (heard" in rank.lines("error")[0]
            assert "it last called call 0 of" in started.describe()
        # The rank is informed of the reason.
        assert "rank 2 (heard" in started[2].lines("error")[0]
