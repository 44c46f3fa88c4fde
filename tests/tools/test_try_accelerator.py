"""The first run on a device, on CPU devices: its comparisons and its figures."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_TOOL = Path(__file__).parents[2] / "tools/try_accelerator.py"


@pytest.mark.parametrize(
    "way", ["host_computation", pytest.param("callback", marks=pytest.mark.long)]
)
def test_two_hosts_of_two_devices_get_an_answer_to_each_statement(tmp_path, way):
    launch = ["-m", "jax_optireduce", "launch", "-n", "2", "--devices-per-process", "2"]
    few = ["--mib", "0.1", "1", "--calls", "2", "--steps", "5", "--host-call", way]
    result = subprocess.run(
        [
            *(sys.executable, *launch, _TOOL, *few),
            *("--json", tmp_path / "result.json", "--profile", tmp_path / "profile"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads((tmp_path / "result.json").read_text())
    answers = {row["statement"]: row["answer"] for row in rows}
    assert answers["devices"] == "4 of cpu"
    assert answers["way of a call"] == way
    assert answers["a plug-in takes the handlers"] == "no plug-in"
    compared = {name: answer for name, answer in answers.items() if "equal" in name}
    assert len(compared) == 12
    assert set(compared.values()) == {"yes"}
    assert answers["all comparisons are right"] == "yes"
    for size in ("0.1", "1"):
        assert float(answers[f"time of a call of {size} MiB"].split()[0]) > 0
    assert any(name.startswith("  event ") for name in answers)
    assert len(list((tmp_path / "profile").rglob("*.xplane.pb"))) == 2


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("try_accelerator", _TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _spread(values):
    mesh = Mesh(jax.devices()[:2], ("slow",))
    return jax.device_put(jnp.asarray(values), NamedSharding(mesh, P("slow")))


def test_a_wrong_value_on_one_device_is_found(tool):
    right = {"a": _spread([1.0, 2.0])}
    assert tool.difference(right, right) == 0.0
    assert tool.difference(right, {"a": _spread([1.0, 2.5])}) == 0.5
    assert math.isnan(tool.difference({"a": _spread([1.0, math.nan])}, right))


@pytest.mark.parametrize("found", [0.5, math.nan])
def test_a_wrong_comparison_is_the_answer_of_each_rank(tool, found, capsys):
    for rank in (0, 1):
        answers = tool.Answers(rank)
        answers.compare("sums are equal", 0.0, 0.0)
        assert answers.right
        answers.compare("means are equal", found, 0.1)
        assert not answers.right
        assert answers.rows[1]["answer"] == "NO"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sums are equal: yes")
    assert lines[1].startswith("means are equal: NO")
    assert lines[2].startswith("rank 1: means are equal: NO")
    assert len(lines) == 3
