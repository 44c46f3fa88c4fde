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
    printed = _printed(
        "diloco",
        *("--rounds", "5", "--batch", "8", "--plot", "diloco.png"),
        folder=tmp_path,
    )
    assert _numbers(r"round 5: held-out accuracy (\S+)", printed)[0] > 0.5
    assert len(_numbers(r"step \d+/50  loss (\S+) ", printed)) >= 2
    # A call in ten steps: of n processes each sends (n - 1)/n of the parameters twice,
    # with headers. Retransmissions on a busy machine do not double it.
    a_step = 2 * (PROCESSES - 1) / PROCESSES * 4 * 93_962 / 10
    (sent,) = _numbers(r"sent by this process: (\S+) bytes", printed.replace(",", ""))
    assert a_step < sent < 2 * a_step
    assert (tmp_path / "diloco.png").read_bytes().startswith(b"\x89PNG")
