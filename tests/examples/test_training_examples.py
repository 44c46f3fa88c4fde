"""The residual network and DiLoCo train, in four processes and in short."""

import re

import launched
import pytest

pytestmark = pytest.mark.long

PROCESSES = 4


def _printed(name, *arguments, folder, processes=PROCESSES, devices=1, **variables):
    """Runs an example; returns the lines of process 0."""
    output = launched.run(
        f"{name}.py",
        folder,
        *arguments,
        processes=processes,
        devices=devices,
        # Processes that share few cores are then late seldom.
        **{"JAX_OPTIREDUCE_DEADLINE_S": "10", **variables},
    )
    return "\n".join(re.findall(r"(?m)^\[0\] (.*)$", output))


def _numbers(pattern, printed):
    return [float(number) for number in re.findall(pattern, printed)]


def test_the_residual_network_learns(tmp_path):
    printed = _printed(
        "train_resnet",
        *("--epochs", "4", "--plot", "resnet.png"),
        folder=tmp_path,
    )
    before, after = _numbers(r"epoch \d+: held-out accuracy (\S+)", printed)
    assert before < 0.4
    assert after > 0.6
    losses = _numbers(r"step \d+/40  loss (\S+) ", printed)
    assert losses[-1] < 0.7 * losses[0]
    assert "examples/s" in printed
    assert (tmp_path / "resnet.png").read_bytes().startswith(b"\x89PNG")


def test_the_residual_network_runs_on_the_collectives_of_jax(tmp_path):
    printed = _printed(
        "train_resnet",
        *("--epochs", "1", "--batch", "320"),
        folder=tmp_path,
        processes=2,
        devices=2,
        JAX_OPTIREDUCE_BACKEND="xla",
    )
    assert len(_numbers(r"epoch \d+: held-out accuracy (\S+)", printed)) == 2


def test_diloco_learns(tmp_path):
    output = launched.run(
        *("diloco.py", tmp_path, "--steps", "100", "--every", "25"),
        *("--parts", "4", "--delay", "3", "--batch", "16"),
        processes=2,
        replicas=True,
    )
    (accuracy, sent), _ = re.findall(
        r"held-out accuracy (\S+); sent (\S+) bytes a step", output
    )
    assert float(accuracy) > 0.7, output
    # A call in 25 steps: of n replicas each sends (n - 1)/n of the parameters twice, in
    # a quarter of the bytes, with headers. Retransmissions on a busy machine do not
    # double it.
    a_step = 2 * 1 / 2 * 93_962 / 25
    assert a_step / 2 < float(sent.replace(",", "")) < 2 * a_step, output
