"""The study of scale: its models follow their formulas, a small one runs through."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def scale():
    """The benchmark, which imports its models from its own folder."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import scale

        yield scale
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def models(scale, monkeypatch):
    """The models, without latency and headers unless a test wants them."""
    module = sys.modules[scale.Network.__module__]
    monkeypatch.setattr(module, "LATENCY_S", 0.0)
    monkeypatch.setattr(module, "WIRE_BYTES", 0)
    monkeypatch.setattr(module, "HEADER_BYTES", 0)
    return module


RNG_SEED = 3


def _times(times, network, calls=4):
    return times(network, calls, np.random.default_rng(RNG_SEED))


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_ring_takes_its_steps_and_its_bytes(models, ranks):
    network = models.Network(ranks, 100, 1.5)
    shard_s = (1 << 20) / ranks / 12.5e9
    behind_s = min(shard_s, models.DATAGRAM_BYTES / 12.5e9)
    expected = 2 * (ranks - 1) * (shard_s + behind_s)
    np.testing.assert_allclose(_times(models.ring_times, network), expected)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_halving_and_doubling_sends_what_a_ring_sends(models, monkeypatch, ranks):
    monkeypatch.setattr(models, "last_link_s", lambda *_: 0.0)
    network = models.Network(ranks, 25, 3.0)
    expected = 2 * (ranks - 1) / ranks * (1 << 20) / 3.125e9
    for times in (models.halving_times, models.ring_times):
        np.testing.assert_allclose(_times(times, network), expected)


def test_each_step_takes_a_latency(models, monkeypatch):
    monkeypatch.setattr(models, "LATENCY_S", 1e-3)
    # Without a tail every draw is the median.
    network = models.Network(16, 100_000, 1.0)
    ring, halving = (
        _times(times, network) for times in (models.ring_times, models.halving_times)
    )
    np.testing.assert_allclose(ring, 30e-3, rtol=1e-2)
    np.testing.assert_allclose(halving, 8e-3, rtol=1e-2)


@pytest.mark.parametrize("tail", [1.5, 3.0])
def test_latencies_have_the_tail_of_the_network(scale, tail):
    network = scale.Network(8, 100, tail)
    latencies = sys.modules[scale.Network.__module__].Latencies(
        network, 1000, 100, np.random.default_rng(RNG_SEED)
    )
    draws = latencies.at(np.zeros((100, 1000)), slice(None))
    median, percentile_99 = np.percentile(draws, [50, 99])
    assert median == pytest.approx(50e-6, rel=0.02)
    assert percentile_99 / median == pytest.approx(tail, rel=0.05)
    np.testing.assert_array_equal(
        draws, latencies.at(np.zeros((100, 1000)), slice(None))
    )


def test_groups_divide_the_ranks_and_are_about_as_many_as_their_members(scale):
    for ranks in scale.RANKS:
        groups = scale.groups_of(ranks)
        assert ranks % groups == 0
        assert groups <= ranks // groups <= 2 * groups


@pytest.mark.long
def test_a_small_study_runs_and_runs_again_as_it_was(scale, tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "CALLS", {8: 2})
    monkeypatch.setattr(scale, "WARM_UP", {8: 2})
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for file in files:
        arguments = ["--ranks", "8", "--gbps", "100", "--tails", "1.5"]
        monkeypatch.setattr(sys, "argv", ["scale.py", "run", str(file), *arguments])
        scale.main()
    assert files[0].read_text() == files[1].read_text()
    lines = scale.read(files[0])
    assert {kind for _, kind in lines} == set(scale.KINDS)
    medians = {kind: np.median(line["elapsed_s"]) for (_, kind), line in lines.items()}
    # The transmission time of the bytes, and two latencies.
    assert 0.15e-3 < medians["exact"] < medians["exact 2D"] < medians["ring model"]
    assert lines[scale.Network(8, 100, 1.5), "exact"]["late"] == 0
    before = files[0].read_text()
    monkeypatch.setattr(sys, "argv", ["scale.py", "run", str(files[0]), *arguments])
    scale.main()  # a run without any work left
    assert files[0].read_text() == before


def test_the_table_and_the_picture_have_every_kind(
    scale, tmp_path, capsys, monkeypatch
):
    file, picture = tmp_path / "some.jsonl", tmp_path / "some.png"
    with file.open("w") as out:
        for tail in scale.TAILS:
            for kind in scale.KINDS:
                network = dataclasses.asdict(scale.Network(8, 25, tail))
                line = {"elapsed_s": [tail * 1e-3] * 3, "late": 0.0, "deadline_s": 0}
                out.write(json.dumps(line | {"network": network, "kind": kind}) + "\n")
    monkeypatch.setattr(sys, "argv", ["scale.py", "table", str(file)])
    scale.main()
    output = capsys.readouterr().out
    assert "| 1 | 1 | 25 | 3.0 | 8 | 3 / 3 |" in output
    assert "| 25 | 1.5 to 3 | 8 | +100 % |" in output
    arguments = ["plot", str(file), "-o", str(picture)]
    monkeypatch.setattr(sys, "argv", ["scale.py", *arguments])
    scale.main()
    assert picture.stat().st_size > 1000
