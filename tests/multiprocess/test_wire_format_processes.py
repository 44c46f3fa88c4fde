"""Wire formats in real processes: fewer bytes, and the whole sum."""

import pytest
import ranks

# Source: 2 of 4 bytes, 33 of 128 and 17 of 128, for each value; and for each datagram
# 40 bytes of header and tag. There are no more datagrams than of float32, and
# acknowledgements.
_LARGEST_SHARE = {"bfloat16": 0.55, "int8": 0.32, "float4": 0.19}

# The error of one sum, relative. Source: docs/wire-formats.md, with a margin.
_LARGEST_ERROR = {"bfloat16": 0.02, "int8": 0.02, "float4": 0.25}

# The error of the sum of 20 float32 sums, rounded at each addition.
_ROUNDING_MAX = 1e-5


def _of_format(rank: ranks.Rank, start: str, wire_format: str) -> list[str]:
    return rank.lines(f"{start} {wire_format} ")


def _only(started: ranks.Ranks, start: str, wire_format: str) -> str:
    """Returns the line that all ranks have printed alike."""
    found = {line for rank in started for line in _of_format(rank, start, wire_format)}
    assert len(found) == 1, started.describe()
    return found.pop()


def test_formats_save_bytes_and_a_drain_brings_what_they_rounded_away(tmp_path):
    options = {"deadline_s": 30.0}
    with ranks.start(
        "wire_formats", "0", folder=tmp_path, world_size=3, options=options
    ) as started:
        started.succeed()
        for wire_format, largest_share in _LARGEST_SHARE.items():
            for rank in started:
                exact = map(int, _of_format(rank, "sent", "float32"))
                rounded = map(int, _of_format(rank, "sent", wire_format))
                for share in (b / a for a, b in zip(exact, rounded, strict=True)):
                    print(f"{wire_format}: {share:.3f} of the bytes")
                    assert share < largest_share
                for error in _of_format(rank, "error", wire_format):
                    assert float(error) < _ROUNDING_MAX, started.describe()
                for error in _of_format(rank, "single", wire_format):
                    # Rounded, and not much.
                    largest = _LARGEST_ERROR[wire_format]
                    assert _ROUNDING_MAX < float(error) < largest, started.describe()
            for start in ("bits", "exact"):
                _only(started, start, wire_format)
        assert _only(started, "nan", "bfloat16") == "1"
        assert _only(started, "nan", "int8") == "32"
        assert _only(started, "nan", "float4") == "32"


@pytest.mark.long
@pytest.mark.parametrize(
    ("sleep_s", "options"),
    [
        pytest.param("0", {"deadline_s": 0.03, "faults": "loss=0.1,seed=5"}, id="loss"),
        pytest.param("0.05", {"deadline_s": 0.03}, id="straggler"),
    ],
)
def test_nothing_is_lost_where_data_is_late_and_rounded(tmp_path, sleep_s, options):
    with ranks.start(
        "wire_formats", sleep_s, folder=tmp_path, world_size=4, options=options
    ) as started:
        started.succeed()
        for wire_format in ("float32", *_LARGEST_SHARE):
            for rank in started:
                errors = _of_format(rank, "error", wire_format)
                assert len(errors) == 2, started.describe()
                assert all(float(e) < _ROUNDING_MAX for e in errors), started.describe()
            _only(started, "bits", wire_format)
