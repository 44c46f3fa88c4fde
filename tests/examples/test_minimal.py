"""The short examples train to the right weights, in two processes."""

import re

import launched
import pytest


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("minimal_shard_map", 4),
        ("minimal_pmap", 2),
        pytest.param("minimal_optax", 2, marks=pytest.mark.long),
        ("minimal_zero", 2),
    ],
)
def test_minimal_example_learns(name, lines, tmp_path):
    output = launched.run(f"{name}.py", tmp_path, processes=2)
    errors = re.findall(r"(?m)^\[\d\] .* weights are off by (\S+)$", output)
    assert len(errors) == lines, output
    assert all(float(error) < 1e-4 for error in errors), output


@pytest.mark.parametrize(
    "path", [*launched.EXAMPLES.glob("minimal_*.py")], ids=lambda p: p.name
)
def test_minimal_example_is_minimal(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 40
    # The differences from a program with lax.pmean are marked.
    for number in (1, 2, 3):
        marked = [line for line in lines if line.endswith(f"  # {number}")]
        assert marked
        assert all("jax_optireduce" in line for line in marked)
