"""The examination of accelerators, on CPU devices: its sections and its reports."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

_TOOLS = Path(__file__).parents[2] / "tools"
_LAUNCH = ("-m", "jax_optireduce", "launch", "-n", "2", "--devices-per-process", "2")

# Stands for tools/accelerator_ranks.py: rank 1 gets a wrong sum, and hangs in `train`.
_FAULTY_RANKS = f"""\
import importlib.util
import time

import jax

spec = importlib.util.spec_from_file_location(
    "original", {str(_TOOLS / "accelerator_ranks.py")!r}
)
original = importlib.util.module_from_spec(spec)
spec.loader.exec_module(original)
psum, train = original.jo.psum, original.TASKS["train"]
PATIENT, Rank = original.PATIENT, original.Rank


def faulty_psum(x, *args, name=None, **how):
    found = psum(x, *args, name=name, **how)
    wrong = name == "psum of int32, agreed" and jax.process_index() == 1
    return found + 1 if wrong else found


def faulty_train(rank):
    if jax.process_index() == 1:
        time.sleep(1000)
    train(rank)


original.jo.psum, original.TASKS["train"] = faulty_psum, faulty_train
if __name__ == "__main__":
    original.main()
"""

# Runs the tool with these ranks, which lie beside it, and shortens the hang.
_FAULTY_TOOL = f"""\
import dataclasses
import sys

sys.path.append({str(_TOOLS)!r})
import try_accelerator

limits_s = {{"train": 40}}
try_accelerator.SECTIONS = [
    dataclasses.replace(section, limit_s=limits_s.get(section.name, 120))
    for section in try_accelerator.SECTIONS
]
sys.exit(try_accelerator.main())
"""


def _run(program, folder, *words, before=()):
    """Runs the tool on CPU devices; returns exit code, output and sections."""
    small = ("--platform", "cpu", "--small", "--out", folder / "results")
    result = subprocess.run(
        [sys.executable, *before, program, *small, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    output = result.stdout + result.stderr
    results = json.loads((folder / "results" / "result.json").read_text())
    return result.returncode, output, results["sections"]


@pytest.mark.parametrize(
    "only",
    [("one-rank", "overlap"), pytest.param((), marks=pytest.mark.long)],
    ids=["few", "all"],
)
def test_ranks_on_this_host_examine_every_section(tmp_path, only):
    words = ("--only", *only) if only else ()
    code, output, sections = _run(_TOOLS / "try_accelerator.py", tmp_path, *words)
    assert code == 0, output
    assert len(sections) == len(only or sections) == (len(only) or 12)
    assert {found["state"] for found in sections.values()} == {"ok"}, output
    assert all(found["compared"] > 0 for found in sections.values())
    assert "one-rank: copy to the device" in output
    assert "overlap: overlap: computation" in output
    assert "not ok: none" in output
    assert output.splitlines()[-1].split("] ")[1].startswith("Please report")


def test_a_wrong_sum_and_a_hang_are_reported_and_the_others_run(tmp_path):
    (tmp_path / "accelerator_ranks.py").write_text(_FAULTY_RANKS)
    (tmp_path / "tool.py").write_text(_FAULTY_TOOL)
    only = ("--only", "sums", "train", "stress")
    code, output, sections = _run(tmp_path / "tool.py", tmp_path, *only)
    assert code == 1, output
    states = {name: found["state"] for name, found in sections.items()}
    assert states == {"sums": "WRONG", "train": "HUNG", "stress": "ok"}, output
    name = "psum of int32, agreed"
    difference = f"rank 1: {name}: largest difference 1, permitted 0"
    assert sections["sums"]["faults"] == [difference, f"ranks differ: {name}"]
    assert f"sums: WRONG, {difference}" in output
    assert "train: HUNG, longer than the limit, after: " in output
    stacks = (tmp_path / "results/train-1/output.txt").read_text()
    assert "in faulty_train" in stacks
    assert "not ok: sums WRONG, train HUNG" in output


def test_processes_of_another_launcher_compare_with_lax(tmp_path):
    only = ("--hosts", "--only", "sums", "train", "times")
    code, output, sections = _run(
        _TOOLS / "try_accelerator.py", tmp_path, *only, before=_LAUNCH
    )
    assert code == 0, output
    assert {found["state"] for found in sections.values()} == {"ok"}, output
    assert "times: lax.psum" in output
    [devices] = [
        line["n"]
        for line in sections["sums"]["lines"]["rank 0"]
        if line["name"] == "devices"
    ]
    assert devices == 4


@pytest.mark.long
def test_a_hang_ends_the_processes_of_another_launcher(tmp_path):
    (tmp_path / "accelerator_ranks.py").write_text(_FAULTY_RANKS)
    (tmp_path / "tool.py").write_text(_FAULTY_TOOL)
    words = ("--hosts", "--only", "train", "stress", "--budget", "30")
    tool = tmp_path / "tool.py"
    code, output, sections = _run(tool, tmp_path, *words, before=_LAUNCH)
    assert code == 1, output
    assert {name: found["state"] for name, found in sections.items()} == {
        "train": "HUNG"
    }, output
    assert "train: HUNG, the budget is over" in output
    assert "in faulty_train" in output


def test_sections_beyond_the_budget_are_left_out(tmp_path):
    words = ("--budget", "1", "--only", "sums", "fine-tuning")
    code, output, sections = _run(_TOOLS / "try_accelerator.py", tmp_path, *words)
    assert code == 0, output
    assert {found["state"] for found in sections.values()} == {"left out"}
    assert "not ok: sums left out, fine-tuning left out" in output
    code, output, _ = _run(_TOOLS / "try_accelerator.py", tmp_path, *words)
    assert code == 2
    assert "has the results of another run" in output


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(_TOOLS)
    import try_accelerator

    return try_accelerator


def test_a_section_without_a_comparison_is_wrong(tool):
    figures = {"rank 0": [{"name": "call", "kib": 64, "ms": 1.0}]}
    assert tool.faults_of(figures) == tool.faults_of({}) == ["no comparison was made"]


@pytest.mark.parametrize(
    ("outputs", "right"),
    [
        (
            [
                "step 1 loss 5.99\nstep 6 loss 5.20",
                "step 1 loss 5.99\nstep 6 loss 5.21",
            ],
            1,
        ),
        (
            [
                "step 1 loss 5.99\nstep 6 loss 5.20",
                "step 1 loss 5.99\nstep 6 loss 5.25",
            ],
            0,
        ),
        (["step 1 loss 5.99", ""], 0),
    ],
)
def test_losses_of_both_devices_are_compared(tool, outputs, right):
    [line] = tool.of_launches("fine-tuning", {}, outputs)["launches"]
    assert line["right"] == right


@pytest.mark.parametrize(
    ("found", "right"), [(1.0, True), (1.5, False), (np.nan, False)]
)
def test_a_wrong_value_is_found(tool, tmp_path, found, right):
    rank = tool.accelerator_ranks.Rank(
        tmp_path, small=True, profile=None, with_lax=False
    )
    rank.compare("value", {"a": tool.jax.numpy.float32(found)}, {"a": 1.0}, 0.25)
    line = json.loads((tmp_path / "rank0.jsonl").read_text().splitlines()[-1])
    assert line["right"] is right
