"""The benchmark of training with pauses, in short and on CPU devices."""

import json
import re
from pathlib import Path

import launched

_PROGRAM = Path(__file__).parents[2] / "benchmarks/gpu_pauses.py"


def test_all_schemes_learn_alike(tmp_path):
    short = [
        "--small",
        "--steps",
        "6",
        "--batch",
        "2",
        "--pause-s",
        "0",
        "--rate",
        "0.003",
    ]
    output = launched.run(str(_PROGRAM), tmp_path, *short, processes=2)
    lines = re.findall(r"(?m)^\[0\] (\{.*\})$", output)
    losses = {x["scheme"]: x["loss"] for x in map(json.loads, lines)}
    assert set(losses) == {"exact", "bounded", "gloo"}, output
    # The loss of an untrained model of bytes is log(256), about 5.55.
    assert max(losses.values()) < 5.4, losses
    assert abs(losses["exact"] - losses["gloo"]) < 1e-3, losses
