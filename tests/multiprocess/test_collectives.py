"""Real processes on loopback compute correct sums, with equal bits on all ranks."""

import pytest
import ranks

_MORE_SIZES = [(2, 1), (3, 1), (4, 1), (2, 2)]


@pytest.mark.parametrize(
    ("world_size", "devices"),
    [
        *((3, 2), (1, 4)),
        *(pytest.param(*sizes, marks=pytest.mark.long) for sizes in _MORE_SIZES),
    ],
)
def test_sums_are_right_and_have_the_same_bits_on_all_ranks(
    tmp_path, world_size, devices
):
    with ranks.start(
        "correctness",
        folder=tmp_path,
        world_size=world_size,
        devices=devices,
        # The data of the bounded calls must never be late.
        options={"deadline_s": 30},
    ) as started:
        started.succeed()
        bits = {line for rank in started for line in rank.lines("bits")}
        assert len(bits) == 1, started.describe()


def test_ranks_with_different_histories_of_traces_train_together(tmp_path):
    with ranks.start("histories", folder=tmp_path, world_size=2) as started:
        started.succeed()
        assert "layer was traced" in started[0].output, started.describe()
        for rank in started:
            assert rank.lines("ours") == rank.lines("lax"), started.describe()
        assert started[0].lines("ours") == started[1].lines("ours")


def test_leaf_of_100_megabytes_arrives_whole(tmp_path):
    with ranks.start("large_leaf", folder=tmp_path, world_size=2) as started:
        started.succeed()


def test_many_collectives_in_any_order_never_block_or_mix(tmp_path):
    with ranks.start(
        "stress", "200", folder=tmp_path, world_size=2, devices=2
    ) as started:
        started.succeed()


def test_160_leaves_travel_in_one_call_and_are_not_copied_together(tmp_path):
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    with ranks.start(
        "many_leaves",
        *("1", str(meeting), "1"),
        folder=tmp_path,
        world_size=3,
        # The data of the calls must not be late.
        options={"deadline_s": 30},
    ) as started:
        started.succeed()


@pytest.mark.long
def test_two_sessions_on_one_host_at_once_do_not_mix(tmp_path):
    folders = [tmp_path / name for name in ("meeting", "first", "second")]
    for folder in folders:
        folder.mkdir()
    meeting, first_folder, second_folder = folders
    options = {"deadline_s": 30}
    with (
        ranks.start(
            "many_leaves",
            *("1", str(meeting), "2"),
            folder=first_folder,
            world_size=2,
            options=options,
        ) as first,
        ranks.start(
            "many_leaves",
            *("2", str(meeting), "2"),
            folder=second_folder,
            world_size=2,
            options=options,
        ) as second,
    ):
        first.succeed()
        second.succeed()


def test_lanes_small_buckets_small_datagrams_and_encryption_change_nothing(tmp_path):
    options = {
        "lanes": 2,
        "bucket_bytes": 4096,
        "datagram_bytes_max": 600,
        "security": "encrypted",
    }
    with ranks.start(
        "correctness", folder=tmp_path, world_size=2, options=options
    ) as started:
        started.succeed()


def test_lost_reordered_and_repeated_datagrams_change_nothing(tmp_path):
    options = {"faults": "loss=0.02,duplicate=0.02,reorder=0.05,seed=3"}
    with ranks.start(
        "correctness", folder=tmp_path, world_size=2, options=options
    ) as started:
        started.succeed()


@pytest.mark.parametrize(
    "world_size",
    [3, *(pytest.param(n, marks=pytest.mark.long) for n in (2, *range(4, 10)))],
)
def test_the_sums_of_a_late_rank_are_right_if_others_relay_them(tmp_path, world_size):
    options = {"faults": "loss=0.02,seed=3", "datagram_bytes_max": 1472}
    with ranks.start(
        "late_exact", folder=tmp_path, world_size=world_size, options=options
    ) as started:
        started.succeed()
        # On a busy machine another rank than the last one may be late, too.
        relayed = [int(rank.lines("relayed")[0]) for rank in started]
        # With two ranks there is no third one to forward to.
        assert (sum(relayed) > 0) == (world_size > 2), relayed
