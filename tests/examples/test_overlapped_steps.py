"""The overlapped steps are those of their equations, and lose no late data."""

import re
from pathlib import Path

import launched
import pytest

PROGRAM = Path(__file__).with_name("overlapped_program.py")
RANKS = 4


@pytest.mark.long
def test_overlapped_steps_are_those_of_their_equations(tmp_path):
    output = launched.run(
        str(PROGRAM),
        tmp_path,
        *("--step", "DeAR", "--layers", "2", "--steps", "40"),
        processes=RANKS,
        PYTHONPATH=str(launched.EXAMPLES),
    )

    def found(pattern, ranks=RANKS):
        lines = re.findall(rf"(?m)^\[\d\] {pattern}$", output)
        assert len(lines) == ranks, output
        return lines

    for step in ("plain", "ACCO", "DeAR"):
        (distance,) = found(rf"exact {step} (\S+)", ranks=1)
        assert float(distance) < 1e-5, output
    assert found(r"equal bits (\w+)") == ["True"] * RANKS
    for step in ("ACCO", "DeAR"):
        lines = found(rf"bounded {step} (\S+) (\d+)")
        assert all(float(distance) < 1e-5 for distance, _ in lines), output
        assert any(int(expired) for _, expired in lines), output
    accuracies = found(r"DeAR, exact: 40 steps of .* accuracy (\S+)")
    assert all(float(accuracy) > 0.8 for accuracy in accuracies), output
