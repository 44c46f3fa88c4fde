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
    without = np.array([0.1, 0.2, 0.2, 0.4])
    assert staleness.progress_lost(without, 0.4) == 0.0
    assert staleness.progress_lost(without, 0.3) == 0.0
    assert staleness.progress_lost(without, 0.2) == 0.5
    assert staleness.progress_lost(without, 0.05) == 0.75


def test_late_data_changes_the_training_and_none_does_not(staleness):
    given = staleness.batches("digits", 0, 20)

    def accuracies(share, age):
        return np.asarray(
            staleness.trained(
                *given,
                np.uint32(0),
                task_name="digits",
                optimizer_name="sgd",
                late=staleness.Lateness(share, age),
            )
        )

    none = accuracies(0.0, 1)
    assert none.shape == (2,)
    assert none[1] > 0.15
    np.testing.assert_array_equal(none, accuracies(0.0, 4))
    assert (accuracies(0.5, 4) != none).any()
