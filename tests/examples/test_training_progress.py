"""The progress of the examples: its lines, its picture, and no wait for the device."""

import dataclasses
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jax_optireduce

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import training_progress
from training_progress import Progress


def _stats(**values):
    names = [f.name for f in dataclasses.fields(jax_optireduce.CollectiveStats)]
    zeros = dict.fromkeys(names, jnp.float32(0))
    given = {name: jnp.float32(value) for name, value in values.items()}
    return jax_optireduce.CollectiveStats(**zeros | given)


def _clock(monkeypatch, step_s):
    """Sets a clock that only `advance` moves."""
    now = [100.0]
    monkeypatch.setattr(training_progress.time, "perf_counter", lambda: now[0])

    def advance():
        now[0] += step_s

    return advance


def test_lines_and_a_picture(tmp_path, capsys, monkeypatch):
    advance = _clock(monkeypatch, 0.5)
    plot = tmp_path / "new folder" / "plot.png"
    late = _stats(missing_contributions=0.02)
    with Progress(
        130, first=100, unit="tokens", units_per_step=64, plot=plot
    ) as progress:
        for i in range(25):
            advance()
            progress.step(jnp.float32(5 - i / 10), late)
    printed = capsys.readouterr().out
    start, first, *lines, summary, last = printed.splitlines()
    assert start == "step 100/130  compiling"
    assert first == "step 101/130  loss 5.000  late 1.00 %"
    line = r"step (\d+)/130  loss (\S+)  step 500 ms  128 tokens/s  late 1.00 %"
    found = [re.fullmatch(line, one) for one in lines]
    # Every five seconds, ten steps.
    assert [one and one.groups() for one in found] == [
        ("111", "4.000"),
        ("121", "3.000"),
    ]
    assert summary == (
        "25 steps in 12.5 s; loss 2.600; step 500 ms; P99 500 ms; 128 tokens/s; "
        "late 1.00 %"
    )
    assert last == f"plot: {plot}"
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_only_process_0_shows_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    plot = tmp_path / "plot.png"
    with Progress(10, units_per_step=1, plot=plot) as progress:
        for _ in range(10):
            progress.step(jnp.float32(1))
    assert capsys.readouterr().out == ""
    assert not plot.exists()


def test_a_step_is_not_waited_for(capsys):
    # About a second of computation, which XLA makes on threads of its own.
    step = jax.jit(
        lambda x: jax.lax.fori_loop(0, 1000, lambda _, x: x @ x / 300, x).mean()
    )
    ones = jnp.ones((300, 300))
    step(ones).block_until_ready()
    with Progress(2, units_per_step=1) as progress:
        first = step(ones)
        progress.step(first)
        assert not first.is_ready()
        # At most two steps are under way.
        progress.step(step(ones))
        assert first.is_ready()
    assert "step 2/2" in capsys.readouterr().out


def test_an_error_of_the_program_is_not_hidden(tmp_path):
    plot = tmp_path / "plot.png"

    def program():
        with Progress(3, units_per_step=1, plot=plot) as progress:
            progress.step(jnp.float32(1))
            progress.step(jnp.float32(1))
            raise RuntimeError("of the program")

    with pytest.raises(RuntimeError, match="of the program"):
        program()
    assert plot.exists()
