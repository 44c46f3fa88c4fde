"""Means of values in mode "bounded", in real processes."""

import ranks

_LAST = 3


def test_a_mean_of_values_is_that_of_those_that_came_or_nan(tmp_path):
    options = {"peer_timeout_s": 2.0, "deadline_s": 0.1}
    with ranks.start(
        "values", "20", folder=tmp_path, world_size=4, options=options
    ) as started:
        started.wait_for(_LAST, "call 30")
        started[_LAST].process.kill()
        started.succeed(0, 1, 2)
        for rank in started[:_LAST]:
            assert rank.lines("alone"), started.describe()
            assert rank.lines("strange") == ["0.0"], started.describe()
        late = sum(int(rank.lines("late")[0]) for rank in started[:_LAST])
        assert late > 0, started.describe()
