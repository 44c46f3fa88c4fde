"""A drain returns the late data, to the last bit, or explains why it returns none."""

import re

import pytest
import ranks

# Chosen: shorter than the sleep of the last rank, so that its data is always late.
_LATE = {"deadline_s": 0.03}
# Chosen: a tree of the tests takes several buckets.
_SEVERAL_BUCKETS = {"bucket_bytes": 40_000}


def _errors(started: ranks.Ranks) -> dict[str, float]:
    """Returns the largest error of each label over the ranks; something was late."""
    found: dict[str, float] = {}
    late: dict[str, float] = {}
    for rank in started:
        for line in rank.lines("conserved"):
            label, numbers = line.rsplit(":", 1)
            error, share = map(float, numbers.split())
            found[label] = max(found.get(label, 0.0), error)
            late[label] = max(late.get(label, 0.0), share)
    assert any(late.values()), started.describe()
    return found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="one", marks=pytest.mark.long),
        pytest.param(_SEVERAL_BUCKETS, id="several"),
    ],
)
def test_calls_and_a_drain_conserve_all_dtypes(tmp_path, options):
    with ranks.start(
        "drains",
        "conserved",
        folder=tmp_path,
        world_size=2,
        options={**_LATE, **options},
    ) as started:
        started.succeed()
        errors = _errors(started)
        assert len(errors) == 9, started.describe()
        assert not any(errors.values()), started.describe()


def test_calls_in_transformations_are_drained(tmp_path):
    with ranks.start(
        "drains", "forms", folder=tmp_path, world_size=2, options=_LATE
    ) as started:
        started.succeed()
        errors = {}
        for rank in started:
            for line in rank.lines("conserved"):
                label, numbers = line.rsplit(":", 1)
                errors.setdefault(label, []).append(float(numbers.split()[0]))
        assert len(errors) == 8, started.describe()
        assert not any(map(any, errors.values())), started.describe()


def test_drain_that_fits_no_call_is_an_error_on_every_rank_and_loses_nothing(tmp_path):
    expected = {
        "typo": "'gradients' \\(float32\\[20000\\], mode bounded, 2 ranks\\)",
        "stranger": "'gradients'.*name=",
        "mode": "'equal' .*mode agreed.*write mode='agreed' in the drain",
        "exact": "write mode='bounded' in the drain",
        "wire format": "write wire_format='int8' in the drain",
        "shape": "float32\\[5\\].*float32\\[20000\\].*same shapes and dtypes",
        "dtype": "bfloat16\\[20000\\].*float32\\[20000\\].*same shapes and dtypes",
        "more leaves": "same shapes and dtypes",
        "of exact": "'loss'.*needs no drain",
    }
    with ranks.start(
        "drains", "unfit", folder=tmp_path, world_size=2, options=_LATE
    ) as started:
        started.succeed()
        for rank in started:
            refused = dict(line.split(": ", 1) for line in rank.lines("refused"))
            assert set(refused) == set(expected), started.describe()
            for label, pattern in expected.items():
                assert re.search(pattern, refused[label]), refused[label]
            assert rank.lines("brought")[:3] == [
                "before any call",
                "exact of exact",
                "lossy",
            ]
            for line in rank.lines("conserved"):
                # Rounding to int8 is exact here.
                assert float(line.split()[-2]) == 0, started.describe()


_WARNING = "log the session ends with late data"


def test_end_of_a_session_with_late_data_is_a_warning_with_bytes_and_names(tmp_path):
    with ranks.start(
        "drains", "end", "late", folder=tmp_path, world_size=3, options=_LATE
    ) as started:
        started.wait()
        # The punctual ranks leave before the last one has called.
        warnings = started[0].lines(_WARNING)
        assert len(warnings) == 1, started.describe()
        assert re.search(r"[\d.]+ [KM]iB of 'grads' \(float32\[200000\]", warnings[0])
        assert "jax_optireduce.drain" in warnings[0]


def test_values_of_late_ranks_need_no_drain_at_the_end(tmp_path):
    with ranks.start(
        "drains", "end", "values", folder=tmp_path, world_size=3, options=_LATE
    ) as started:
        # As above: the last rank calls after the end of the others.
        started.succeed(0, 1)
        started.wait()
        assert not any(rank.lines(_WARNING) for rank in started), started.describe()


@pytest.mark.parametrize("how", ["drained", "whole", "error"])
def test_session_that_loses_nothing_or_fails_ends_without_a_warning(tmp_path, how):
    options = {"deadline_s": 30.0} if how == "whole" else _LATE
    with ranks.start(
        "drains", "end", how, folder=tmp_path, world_size=2, options=options
    ) as started:
        if how == "error":
            started.wait()
        else:
            started.succeed()
        assert not any(rank.lines(_WARNING) for rank in started), started.describe()
