"""What follows from loss is decided alike on every rank, by all of them."""

import numpy as np
import pytest
import ranks

# Calls that repair what is lost, at the beginning of each collective.
CALIBRATION = 20

# Of datagrams; of 4 ranks, each misses 3/4 of it. Ranks then differ about SKIP_ABOVE.
LOSS = 0.2
SKIP_ABOVE = 0.16

OPTIONS = {
    "deadline_s": 0.05,
    "datagram_bytes_max": 1472,
    "faults": f"loss={LOSS},seed=5",
    "bucket_bytes": 120_000,
}


def _calls(started):
    """What each rank saw and decided, [ranks, calls, 7]."""
    started.succeed()
    return np.array(
        [
            [list(map(float, line.split())) for line in rank.lines("call")]
            for rank in started
        ]
    )


def test_ranks_that_lost_different_data_decide_alike(tmp_path):
    with ranks.start(
        *("safeguards", "120", "auto", str(SKIP_ABOVE), "log"),
        folder=tmp_path,
        world_size=4,
        options=OPTIONS,
    ) as started:
        calls = _calls(started)
        assert calls.shape == (4, 120, 7), started.describe()
    losses, decided = calls[..., 0], calls[..., 1:]
    assert (decided == decided[0]).all()
    hadamard, _, skipped, _, skips, zero = decided[0].T
    opinions = losses > SKIP_ABOVE
    assert (opinions.any(0) & ~opinions.all(0)).any(), "all ranks lost the same"
    np.testing.assert_array_equal(skipped, opinions.any(0))
    np.testing.assert_array_equal(zero, skipped)
    np.testing.assert_array_equal(skips, np.cumsum(skipped))
    first = int(np.argmax(losses.mean(0) > 0.02))
    assert first >= CALIBRATION
    assert not hadamard[:first].any()
    assert hadamard[first:].all()
    # The rotated collective has 20 calls to calibrate, too, and loses data afterwards.
    assert (losses.mean(0)[first + CALIBRATION + 1 :] > 0.02).any()


@pytest.mark.parametrize("how", ["callback", "log"])
def test_fifty_skips_in_a_row_call_the_user_on_every_rank(tmp_path, how):
    with ranks.start(
        *("safeguards", "80", "False", "0.0", how),
        folder=tmp_path,
        world_size=2,
        options=OPTIONS,
    ) as started:
        calls = _calls(started)
        assert calls[0, :, 4].max() >= 50, started.describe()
        for rank in started:
            assert rank.lines("called") == (["50"] if how == "callback" else [])
            said = [
                line for line in rank.lines("log") if "updates were skipped" in line
            ]
            assert len(said) == (how == "log"), started.describe()
            assert all("the last 50 updates" in line for line in said)
