"""The cost of late gradients: `benchmarks/staleness.py`."""

from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def staleness(monkeypatch):
    """The module `staleness`."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import staleness

    return staleness


def test_lost_progress_is_that_of_the_training_without_late_data(staleness):
    without = np.array([4.0, 3.0, 3.0, 1.0])
    assert staleness.progress_lost(without, 1.0) == 0.0
    assert staleness.progress_lost(without, 0.5) == 0.0
    assert staleness.progress_lost(without, 2.0) == 0.125
    assert staleness.progress_lost(without, 5.0) == 0.75
    assert staleness.progress_lost(without, np.nan) == 1.0


@pytest.mark.long
def test_late_data_changes_the_training_and_none_does_not(staleness):
    def curve(share, age):
        late = staleness.Lateness(share, age)
        return staleness.trained("digits", "sgd", late, seed=0, steps=10)

    none = curve(0.0, 1)
    assert none.shape == (2, 2)
    assert none[1, 0] > 0.15
    np.testing.assert_array_equal(none, curve(0.0, 4))
    assert (curve(0.5, 4) != none).any()
