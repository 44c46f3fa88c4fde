"""Sums over two axes, of which one is fast: bytes, and calls that miss data."""

import pytest
import ranks


def test_a_device_sends_its_part_of_the_bytes(tmp_path):
    devices = 4
    with ranks.start(
        *("fast_axis", "bytes"), folder=tmp_path, world_size=2, devices=devices
    ) as started:
        started.succeed()
        for rank in started:
            ours, whole = map(int, rank.lines("bytes")[0].split())
            # Headers, and acknowledgements, are some percent of the bytes.
            assert ours == pytest.approx(whole / devices, rel=0.1), rank.output


@pytest.mark.parametrize("mode", ["bounded", "lossy"])
def test_devices_of_a_process_agree_on_missing_data_and_none_is_lost(tmp_path, mode):
    with ranks.start_with_loss(
        *("fast_axis", "data", mode), folder=tmp_path, deadline_s=0.02
    ) as started:
        started.succeed()
        for rank in started:
            # All devices have the same bits and one report, so they decide alike.
            assert rank.lines("copies") == ["1"], rank.output
            assert rank.lines("reports") == ["1"], rank.output
            assert float(rank.lines("missing")[0]) > 0, rank.output
            if mode != "lossy":
                assert float(rank.lines("conserved")[0]) == 0.0, rank.output
