"""Decisions that depend on loss are equal on every rank."""

import re

import numpy as np
import pytest
import ranks


def _start(*arguments, folder, world_size, deadline_s):
    options = {
        "deadline_s": deadline_s,
        "datagram_bytes_max": 1472,
        # Less than the larger leaf: two buckets.
        "bucket_bytes": 120_000,
    }
    return ranks.start(
        "safeguards", *arguments, folder=folder, world_size=world_size, options=options
    )


def _calls(started):
    """The observations and decisions of each rank, [ranks, calls, 8]."""
    started.succeed()
    return np.array(
        [
            [list(map(float, line.split())) for line in rank.lines("call")]
            for rank in started
        ]
    )


def test_ranks_that_lost_different_data_decide_alike(tmp_path):
    # 4 ranks miss 3.75 % if 5 % of the datagrams are lost: some more than the limit,
    # some less. While a rank measures whole calls, nothing is lost: twice 20 calls, and
    # more on a busy machine.
    number = 110
    with _start(
        *("0.05", str(number), "auto", "0.0375", "log"),
        folder=tmp_path,
        world_size=4,
        deadline_s=0.2,
    ) as started:
        calls = _calls(started)
        assert calls.shape == (4, number, 8), started.describe()
    losses, decided = calls[..., 0], calls[..., 1:]
    assert (decided == decided[0]).all()
    hadamard, _, skipped, _, skips, sequence, zeros = decided[0].T
    opinions = losses > 0.0375
    assert (opinions.any(0) & ~opinions.all(0)).any(), "all ranks lost the same"
    np.testing.assert_array_equal(skipped, opinions.any(0))
    np.testing.assert_array_equal(zeros, skipped)
    np.testing.assert_array_equal(skips, np.cumsum(skipped))
    first = int(np.argmax(losses.mean(0) > 0.02))
    assert not hadamard[:first].any()
    assert hadamard[first:].all()
    # The calls after this one belong to another collective.
    counted = [*range(first + 1), *range(number - first - 1)]
    np.testing.assert_array_equal(sequence, counted)


@pytest.mark.parametrize(
    "how", ["callback", pytest.param("log", marks=pytest.mark.long)]
)
def test_fifty_skips_in_a_row_call_the_user_on_every_rank(tmp_path, how):
    with _start(
        # Twenty calls lose nothing; on a busy machine some later ones have time enough.
        *("0.2", "300", "False", "0.0", how),
        folder=tmp_path,
        world_size=2,
        deadline_s=0.05,
    ) as started:
        in_a_row = _calls(started)[0, :, 4].astype(int)
        due = [str(skips) for skips in in_a_row if skips and skips % 50 == 0]
        assert due, started.describe()
        for rank in started:
            assert rank.lines("user") == (due if how == "callback" else [])
            said = re.findall(r"the last (\d+) updates were skipped", rank.output)
            assert said == (due if how == "log" else []), started.describe()
