"""Arguments and figures of `bench`."""

import contextlib
import io
import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from jax_optireduce import UsageError
from jax_optireduce.tools import arguments, bench, bench_figures, bench_rank, screen
from jax_optireduce.tools.bench_rank import TURN_CALLS, Calls


def _calls(seconds, *, cpu_s=1.0, missing=0.0, wrong=0, checked=0, elements=1000):
    """Calls whose times, shares and deadlines are those given, [ranks, calls]."""
    seconds = np.asarray(seconds, np.float64)
    ranks = len(seconds)
    return Calls(
        seconds=seconds,
        missing=np.broadcast_to(np.float32(missing), seconds.shape),
        deadline_s=np.zeros(seconds.shape, np.float32),
        cpu_s=np.full(ranks, cpu_s),
        wrong=np.full(ranks, wrong),
        checked=np.full(ranks, checked),
        elements=np.full(ranks, elements),
    )


def _figures(kind, calls, dtype="float32"):
    return bench_figures.figures(kind, calls, np.dtype(dtype))


def _arguments(*given):
    parser = arguments.Parser("bench", "")
    bench.add_arguments(parser)
    return parser.read(given)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4", 4), ("1K", 1024), ("100M", 100 << 20), ("1.5k", 1536), ("2G", 2 << 30)],
)
def test_sizes_are_read_as_in_nccl_tests(text, size_bytes):
    assert bench_figures.parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "K", "0", "0.1", "-4", "1 K", "1KB", "1e6", "x"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="must look like 4, 1K, 100M"):
        bench_figures.parse_size(text)


@hypothesis.given(st.integers(1, 1 << 34))
@hypothesis.example((1 << 30) - 52_428)
def test_a_size_is_written_as_it_is_read(size_bytes):
    text = bench_figures.format_size(size_bytes)
    assert len(text) <= 7
    read = bench_figures.parse_size(text)
    assert read == pytest.approx(size_bytes, rel=0.06)
    assert bench_figures.format_size(read) == text or "." in text


@hypothesis.given(
    st.integers(1, 1 << 20),
    st.integers(0, 1 << 24),
    st.floats(1.01, 100),
)
def test_sizes_rise_from_the_lowest_and_end_below_the_highest(low, more, factor):
    found = bench_figures.sizes(low, low + more, factor)
    assert found[0] == low
    assert found[-1] <= low + more
    assert found == sorted(set(found))


@hypothesis.given(
    st.lists(st.floats(1e-6, 10), min_size=1, max_size=300), st.integers(1, 4)
)
def test_percentiles_are_times_that_were_measured(times, ranks):
    seconds = np.stack([np.array(times) / (rank + 1) for rank in range(ranks)])
    found = _figures("exact", _calls(seconds))
    for name, per_mille in (("p50_s", 500), ("p99_s", 990), ("p999_s", 999)):
        assert found[name] in times
        # Whole numbers are exact: 0.999 * 1000 is not 999 in floating point.
        assert 1000 * sum(t <= found[name] for t in times) >= per_mille * len(times)
        assert 1000 * sum(t < found[name] for t in times) < per_mille * len(times)
    assert found["max_s"] == max(times)


@pytest.mark.parametrize(("calls", "longer"), [(999, 0), (1000, 1), (2000, 2)])
def test_p999_of_a_thousand_calls_is_not_the_maximum(calls, longer):
    found = _figures("exact", _calls([np.arange(1, calls + 1)]))
    assert found["p999_s"] == calls - longer


def test_the_time_of_a_call_is_that_of_the_slowest_rank():
    found = _figures("exact", _calls([[1.0, 2.0, 3.0], [3.0, 1.0, 3.0]]))
    assert found["p50_s"] == 3.0
    assert found["seconds_by_rank"] == [[1.0, 2.0, 3.0], [3.0, 1.0, 3.0]]


def test_bandwidths_and_processor_time_are_per_byte_of_the_size():
    calls = _calls(np.full((4, 10), 0.5), cpu_s=2.0, elements=250_000_000)
    found = _figures("exact", calls)
    assert found["bytes"] == 1_000_000_000
    assert found["algbw_gb_s"] == pytest.approx(2.0)
    assert found["busbw_gb_s"] == pytest.approx(3.0)  # 2 (4 - 1) / 4
    assert found["cpu_s_per_gb"] == pytest.approx(0.8)  # 4 ranks, 2 s, 10 GB


@pytest.mark.parametrize(
    ("mode", "late", "lost"),
    [("exact", 0, 0), ("agreed", 0.1, 0), ("bounded", 0.1, 0), ("lossy", 0, 0.1)],
)
def test_what_is_missing_is_late_or_lost_by_the_mode(mode, late, lost):
    missing = (
        np.zeros((2, 5))
        if mode == "exact"
        else [[0.2, 0, 0.2, 0, 0], [0.6, 0, 0, 0, 0]]
    )
    found = _figures(mode, _calls(np.ones((2, 5)), missing=missing))
    assert found["late_share"] == pytest.approx(late)
    assert found["lost_share"] == pytest.approx(lost)
    assert found["deadline_hits"] == (0 if mode == "exact" else 2)


def test_wrong_is_none_unless_sums_were_verified():
    assert _figures("exact", _calls(np.ones((2, 5))))["wrong"] is None
    found = _figures("exact", _calls(np.ones((2, 5)), wrong=3, checked=5))
    assert found["wrong"] == 6
    assert found["checked_calls"] == 5


def test_ratios_are_ours_over_theirs_and_quartiles_are_over_turns():
    turns = 4
    theirs = np.full((2, TURN_CALLS * turns), 2.0)
    ours = np.repeat([1.0, 1.0, 4.0, 1.0], TURN_CALLS)[None].repeat(2, axis=0)
    found = _figures("exact", _calls(ours, cpu_s=1.0))
    bench_figures.compare(found, _figures("xla", _calls(theirs, cpu_s=4.0)))
    assert found["against_xla"] == {
        "p50": 0.5,
        "p99": 2.0,
        "p999": 2.0,
        "max": 2.0,
        "cpu_per_gb": 0.25,
        "p50_quartiles_of_turns": [0.5, 0.875],
    }


@hypothesis.given(
    st.floats(1e-6, 900),
    st.floats(0, 1),
    st.integers(1, 10**8 - 1),
    st.sampled_from(["exact", "bounded", "lossy", "xla"]),
)
def test_every_value_fits_into_its_column_and_the_tables_into_80(
    seconds, missing, elements, mode
):
    calls = _calls([[seconds] * 9] * 2, missing=missing, elements=elements, checked=1)
    found = _figures(mode, calls)
    bench_figures.compare(found, _figures("xla", _calls([[1e-3] * 9] * 2)))
    heading = bench_figures.heading(
        {
            "version": "0.1.0",
            "jax": "0.10.2",
            "processes": 2,
            "hosts": [{"name": "a", "cores": 2, "load_average": 1.0}] * 2,
            "iterations": 9,
            "warm_up": 25,
            "in_place": True,
            "dtype": "float32",
        }
    )
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        screen.show(heading)
        screen.show(bench_figures.table([], heading=True))
        screen.show(bench_figures.table([found], heading=False))
        screen.show(bench_figures.ratios([found]))
    lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) <= screen.WIDTH
    assert len(lines) == 3 + 3 + 2
    # A value that is too long for its column would end with an ellipsis.
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed.getvalue()
    titles, _, row = lines[3:6]
    assert len(titles.split()) == len(row.split())
    assert len(titles) == len(row)


def test_what_is_written_is_json():
    calls = _calls(np.full((2, 5), 1e-3), checked=1)
    result = _figures("bounded", calls)
    assert json.loads(json.dumps(result)) == result


@hypothesis.given(st.integers(2, 42), st.integers(0, 100))
def test_a_contribution_that_is_missing_or_comes_twice_makes_every_sum_wrong(
    ranks, call
):
    row = np.array([1, 2, -2])
    want = bench_rank.expected_sum(row, ranks, call)
    once = row * bench_rank.weight(ranks - 1, call)
    assert bench_rank.wrong_elements("exact", want, want, 0.0) == 0
    for got in (want - once, want + once):
        assert bench_rank.wrong_elements("exact", got, want, 0.0) == 3
    other = bench_rank.expected_sum(row, ranks, call + 1)
    assert bench_rank.wrong_elements("exact", other, want, 0.0) == 3


def test_lossy_sums_may_round_and_nothing_may_be_nan():
    want = np.array([8.0, 0.0, -3.0])
    epsilon = np.finfo(np.float32).eps
    rounded = want * (1 + 8 * epsilon)
    assert bench_rank.wrong_elements("lossy", rounded, want, epsilon) == 0
    assert bench_rank.wrong_elements("bounded", rounded, want, epsilon) == 2
    assert bench_rank.wrong_elements("lossy", want + 1, want, epsilon) == 3
    assert bench_rank.wrong_elements("lossy", want * np.nan, want, epsilon) == 3


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("mode", ["exact", "bounded", "agreed", "lossy"])
@pytest.mark.usefixtures("communicator")
def test_every_mode_is_measured_and_verified(mode, in_place):
    plan = bench_rank.Plan(
        sizes_bytes=[4004],
        dtype="float32",
        in_place=in_place,
        kinds=["xla", mode],
        iterations=7,
        warm_up=1,
        check_calls=2,
        late_s=0.0,
    )
    seen = []
    mesh = bench_rank.make_mesh()
    found = bench_rank.measure(plan, 4004, mesh, lambda: seen.append(1))
    assert len(seen) == 2 * bench_rank.turns(plan)
    for kind in plan.kinds:
        assert found[kind].seconds.shape == (7,)
        assert found[kind].elements == 1001
    assert (found[mode].checked, found[mode].wrong) == (2, 0)
    gathered = bench_rank.gather("label", found[mode])
    assert _figures(mode, gathered)["wrong"] == 0


@pytest.mark.usefixtures("communicator")
def test_a_wrong_sum_is_counted(monkeypatch):
    def planted(row, ranks, call):
        sums = row * ranks * (1 + call % 3)
        sums[[3, 5]] += call == 1
        return sums

    monkeypatch.setattr(bench_rank, "expected_sum", planted)
    plan = bench_rank.Plan(
        sizes_bytes=[400],
        dtype="float32",
        in_place=False,
        kinds=["exact"],
        iterations=1,
        warm_up=0,
        check_calls=3,
        late_s=0.0,
    )
    found = bench_rank.measure(plan, 400, bench_rank.make_mesh(), lambda: None)
    assert (found["exact"].wrong, found["exact"].checked) == (2, 3)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("-b 2", "--min-bytes must be 4 or more"),
        ("-b 1M -e 1K", "--max-bytes must not be below --min-bytes"),
        ("-d int32 --mode all", "int32 needs --mode exact"),
        ("--deadline-s 1e-6", "deadline_s must be 0 or between"),
    ],
)
def test_arguments_that_do_not_fit_say_what_does(given, match):
    with pytest.raises(UsageError, match=match):
        bench._plan(_arguments(*given.split()))


def test_all_modes_are_measured_beside_xla():
    plan, options = bench._plan(
        _arguments(
            *("--mode", "all", "--against", "xla", "--loss", "0.1"),
            *("-b", "4", "-e", "64", "-f", "4"),
        )
    )
    assert plan.kinds == ("xla", "exact", "agreed", "bounded", "lossy")
    assert plan.sizes_bytes == [4, 16, 64]
    assert options == {"faults": {"loss": 0.1, "seed": 1}}
