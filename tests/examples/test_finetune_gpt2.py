"""The fine-tuning programs train, resume and export, in real processes."""

import json
import re
import shutil
import sys
from pathlib import Path

import launched
import numpy as np
import pytest
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import finetune_train
from hugging_face import InputError


def _losses(output):
    return [float(x) for x in re.findall(r"(?m)^\[0\] step \d+/.* loss (\S+)", output)]


def _tensors(folder):
    return load_file(folder / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The output and the folder of a training in 4 processes, in the default mode."""
    folder = tmp_path_factory.mktemp("tuned")
    arguments = ("--steps", "30", "--save-every", "20")
    output = launched.run("finetune_gpt2.py", folder, *arguments, processes=4)
    return output, folder / "finetuned"


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """The output and the folder of 8 steps in mode exact, without a pause."""
    folder = tmp_path_factory.mktemp("exact")
    return _exact(folder, "--save-every", "4"), folder / "finetuned"


def _exact(folder, *arguments, **variables):
    arguments = ("--mode", "exact", "--steps", "8", "--accumulate", "2", *arguments)
    return launched.run(
        "finetune_gpt2.py", folder, *arguments, processes=2, **variables
    )


@pytest.mark.long
def test_a_fine_tuned_gpt2_learns_and_is_exported(tuned):
    output, folder = tuned
    # On a busy machine the loss of a step may come from no rank in time.
    first, *_, last = filter(np.isfinite, _losses(output))
    # Untrained it is ln(384) = 5.9.
    assert last < 4 < first < 6.5, output
    assert re.search(r"(?m)^\[0\] 30 steps in .* P99 .* tokens/s; late", output)
    assert not re.search(r"(?m)^\[[123]\] step", output)
    trained, first = _tensors(folder), load_file(folder / "tiny" / "model.safetensors")
    assert trained.keys() == first.keys()
    assert not any(np.array_equal(trained[name], first[name]) for name in first)
    assert (folder / "model" / "merges.txt").exists()
    assert json.loads((folder / "model" / "config.json").read_text())["n_embd"] == 32
    assert {p.name for p in (folder / "checkpoints").iterdir()} >= {"20", "30"}
    assert (folder / "progress.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_resumed_training_has_the_bits_of_one_without_a_pause(exact, tmp_path):
    output, folder = exact
    of_step_4 = Path("checkpoints", "4")
    shutil.copytree(folder / of_step_4, tmp_path / "finetuned" / of_step_4)
    resumed = _exact(tmp_path, "--resume")
    assert "[0] 4 steps in" in resumed
    assert _losses(resumed)[-1] == _losses(output)[-1]
    wanted, found = _tensors(folder), _tensors(tmp_path / "finetuned")
    assert wanted.keys() == found.keys()
    assert all(wanted[name].tobytes() == found[name].tobytes() for name in wanted)
    assert any((wanted[name] != start).any() for name, start in _start(folder).items())


@pytest.mark.long
def test_a_training_is_not_overwritten_or_continued_with_other_settings(exact):
    folder = exact[1] / "checkpoints"
    checkpoints = finetune_train.Checkpoints(folder, {"seed": 3})
    with pytest.raises(InputError, match="training of 8 steps: add --resume"):
        checkpoints.restore(None, resume=False)
    with pytest.raises(InputError, match="seed=0, not 3: resume it with the same"):
        checkpoints.restore(None, resume=True)
    checkpoints.close()


def _start(folder):
    return load_file(folder / "tiny" / "model.safetensors")


@pytest.mark.long
def test_the_collectives_of_jax_train_alike(exact, tmp_path):
    output, folder = exact
    xla = _exact(tmp_path, JAX_OPTIREDUCE_BACKEND="xla")
    assert _losses(xla)[-1] == pytest.approx(_losses(output)[-1], abs=2e-3)
    wanted, found = _tensors(folder), _tensors(tmp_path / "finetuned")
    for name, start in _start(folder).items():
        moved = np.abs(wanted[name] - start).max()
        assert np.abs(found[name] - wanted[name]).max() < 0.05 * moved, name


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """The output and the folder of 30 steps of adapters in mode exact."""
    folder = tmp_path_factory.mktemp("adapted")
    return _adapted(folder), folder / "adapted"


def _adapted(folder, *arguments):
    arguments = ("--steps", "30", "--save-every", "20", "--rate", "1e-2", *arguments)
    return launched.run("lora.py", folder, "--mode", "exact", *arguments, processes=2)


@pytest.mark.long
def test_adapters_learn_and_are_merged_into_the_checkpoint(adapted):
    output, folder = adapted
    first, *_, last = _losses(output)
    assert last < first - 0.02, output
    assert "[0] adapters: 2,048 parameters beside 39,808" in output
    before, after = _start(folder), _tensors(folder)
    assert after.keys() == before.keys()
    for name, value in before.items():
        if not name.endswith("attn.c_attn.weight"):
            assert np.array_equal(after[name], value), name
            continue
        # The difference has the rank of the adapter.
        singular = np.linalg.svd(after[name] - value, compute_uv=False)
        assert singular[7] > 100 * singular[8], singular


@pytest.mark.long
def test_resumed_adapters_have_the_bits_of_those_without_a_pause(adapted, tmp_path):
    folder = adapted[1]
    stopped = _adapted(tmp_path, "--stop-after", "20")
    assert (tmp_path / "adapted" / "checkpoints" / "20").exists(), stopped
    assert "[0] 10 steps in" in _adapted(tmp_path, "--resume")
    wanted, found = _tensors(folder), _tensors(tmp_path / "adapted")
    assert wanted.keys() == found.keys()
    assert all(wanted[name].tobytes() == found[name].tobytes() for name in wanted)


def test_unusable_options_are_errors_that_say_what_to_do(tmp_path):
    missing = ("--checkpoint", "nowhere", "--text", "text.txt")
    output = launched.run("finetune_gpt2.py", tmp_path, *missing, processes=1, code=1)
    assert "error: nowhere/config.json: No such file or directory. Give" in output
    assert "Traceback" not in output
