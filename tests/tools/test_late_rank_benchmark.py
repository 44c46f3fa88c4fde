"""The benchmark of a late rank: `benchmarks/late_rank.py`."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def late_rank(monkeypatch):
    """The module, with buckets and networks of a quarter."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import late_rank

    monkeypatch.setattr(late_rank, "ELEMENTS", late_rank.ELEMENTS // 4)
    monkeypatch.setattr(late_rank, "W_S", late_rank.W_S / 4)
    return late_rank


def test_closed_forms_have_the_bounds_of_their_bytes(late_rank):
    for ranks in (4, 8, 12, 256):
        # A late rank has to send and to receive the whole bucket.
        assert 1 < late_rank.stragglar(ranks, 1) < 1.1
        # Without lateness the first part, (n - 2) / (n - 1) W, is before the second.
        whole = late_rank.stragglar(ranks, 0) - late_rank.stragglar(ranks, 1)
        assert whole == pytest.approx((ranks - 2) / (ranks - 1))
    assert late_rank.ring(4) == 1.5
    assert late_rank.stragglar(4, 1) == pytest.approx(13 / 12)


def test_many_ranks_have_one_delay_unless_others_are_named(late_rank):
    assert [case.delay for case in late_rank.cases_of([256], None)] == [1, 1]
    assert len(late_rank.cases_of([4, 256], None)) == 2 * len(late_rank.DELAYS) + 2
    assert len(late_rank.cases_of([256], [0.0, 2.0])) == 4


def test_cases_are_measured_once_and_stand_in_table_and_picture(
    late_rank, monkeypatch, tmp_path, capsys
):
    words = [tmp_path / "late.jsonl", "--ranks", 4, "--delays", 1, "--plot"]
    picture = tmp_path / "late.png"
    monkeypatch.setattr(sys, "argv", ["late_rank.py", *map(str, words), str(picture)])
    late_rank.main()
    first = capsys.readouterr().out
    *_, ring, stragglar, without, relayed, _ = first.splitlines()[-1].split("|")
    assert (float(ring), float(stragglar)) == (1.5, 1.08)
    assert 1 < float(relayed) < 1.3 < float(without) < 1.8
    assert picture.read_bytes().startswith(b"\x89PNG")

    def never(_):
        raise AssertionError

    monkeypatch.setattr(late_rank, "measure", never)
    late_rank.main()
    assert capsys.readouterr().out == first
