"""Coded training learns with a rank that sleeps, and has no inexact gradient."""

import re

import launched
import pytest


@pytest.mark.long
def test_coded_training_learns_while_a_rank_sleeps(tmp_path):
    output = launched.run(
        "coded_training.py",
        tmp_path,
        *("--steps", "20", "--sleep-ms", "60"),
        processes=4,
    )
    printed = re.findall(
        r"(?m)^\[(\d)\] 20 steps of \S+ ms, (\d+) inexact; held-out accuracy (\S+)$",
        output,
    )
    found = {int(rank): (int(n), float(share)) for rank, n, share in printed}
    assert set(found) == {0, 1, 2, 3}, output
    # On a busy machine another rank may be late as well, but not a whole cluster.
    for cluster in ((0, 1), (2, 3)):
        inexact, accuracy = min(found[rank] for rank in cluster)
        assert inexact == 0, output
        assert accuracy > 0.8, output
