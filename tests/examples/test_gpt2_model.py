"""GPT-2 computes the numbers of Hugging Face, from the files of Hugging Face."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import finetune_tiny
import gpt2_model
import gpt2_text
from finetune_setup import Rows
from gpt2_model import FAMILY
from hugging_face import InputError, write_tensors

# Every field has an effect on the result.
CONFIG = gpt2_model.Config(
    vocab_size=96,
    n_positions=16,
    n_embd=24,
    n_layer=2,
    n_head=3,
    n_inner=40,
    layer_norm_epsilon=1e-3,
)
TOKENS = (13 * np.arange(26).reshape(2, 13) % 96).astype(np.int32)

# Source: GPT2LMHeadModel of transformers 5.23.0 in float64, from the files of `_write`:
# logits [:, -1, :3] of all but the last of TOKENS, the loss, and norms of its gradient.
LOGITS = [[-1.562819, -2.006328, -1.752120], [-1.294748, -1.377272, 0.648624]]
LOSS = 5.7891145
GRADIENT_NORMS = {
    "wte.weight": 2.6639217,
    "wpe.weight": 2.1239086,
    "h.0.attn.c_attn.weight": 3.1788563,
    "h.1.mlp.c_fc.bias": 0.1184205,
    "h.1.mlp.c_proj.weight": 0.5343051,
    "ln_f.weight": 0.5731633,
}


def _tensors():
    """Tensors unlike those of a new model: every bias and scale has an effect."""
    generator = np.random.default_rng(7)
    return {
        name: (0.3 * generator.standard_normal(shape)).astype(np.float32)
        + np.float32(len(shape) == 1 and name.endswith("weight"))
        for name, shape in sorted(FAMILY.shapes(CONFIG).items())
    }


def _write(folder, tensors=None, **fields):
    """Writes a checkpoint, with the tokenizer of the tiny one."""
    finetune_tiny.make_gpt2(folder)
    config = {"model_type": "gpt2", **dataclasses.asdict(CONFIG), **fields}
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder, _tensors() if tensors is None else tensors)
    return folder


@pytest.fixture(scope="module")
def mesh():
    """A mesh of one device."""
    axes = (jax.sharding.AxisType.Auto,) * 2
    devices = jax.devices()[:1]
    return jax.make_mesh((1, 1), ("data", "fsdp"), axis_types=axes, devices=devices)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a checkpoint with every file."""
    return _write(tmp_path_factory.mktemp("checkpoint"))


def _same(params, others):
    leaves = [jax.tree.leaves(tree) for tree in (params, others)]
    return all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


def test_logits_loss_and_gradients_are_those_of_transformers(checkpoint, mesh):
    graph, params, _ = FAMILY.load(checkpoint, mesh)

    def loss_fn(params):
        model = nnx.merge(graph, params)
        return gpt2_model.next_token_loss(model, TOKENS), model(TOKENS[:, :-1])

    value_and_grad = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
    (loss, logits), gradients = value_and_grad(params)
    np.testing.assert_allclose(logits[:, -1, :3], LOGITS, atol=3e-5)
    assert float(loss) == pytest.approx(LOSS, rel=1e-6)
    flat = nnx.to_flat_state(gradients)
    norms = {FAMILY.tensor_name(p): float(jnp.linalg.norm(v[...])) for p, v in flat}
    for name, norm in GRADIENT_NORMS.items():
        assert norms[name] == pytest.approx(norm, rel=2e-5), name


def test_every_form_of_a_checkpoint_has_the_same_parameters(checkpoint, mesh, tmp_path):
    params = FAMILY.load(checkpoint, mesh)[1]
    # `save_pretrained` writes this form, and older checkpoints have it: with the
    # embedding twice, and the masks of attention.
    full = {f"transformer.{name}": value for name, value in _tensors().items()}
    full["lm_head.weight"] = full["transformer.wte.weight"]
    full["transformer.h.0.attn.bias"] = np.ones((1, 1, 16, 16), np.uint8)
    full["transformer.h.0.attn.masked_bias"] = np.array(-1e4, np.float32)
    assert _same(params, FAMILY.load(_write(tmp_path / "full", full), mesh)[1])
    # The checkpoint comes in parts.
    parts = _write(tmp_path / "parts")
    (parts / "model.safetensors").unlink()
    names = sorted(_tensors())
    files = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        part = {name: _tensors()[name] for name in names if files[name] == file}
        save_file(part, parts / file)
    index = parts / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    assert _same(params, FAMILY.load(parts, mesh)[1])
    # The checkpoint has half the bytes.
    half = {name: v.astype(ml_dtypes.bfloat16) for name, v in _tensors().items()}
    rounded = FAMILY.load(_write(tmp_path / "half", half), mesh)[1]
    assert _same(rounded, jax.tree.map(lambda x: x.astype("bfloat16"), params))
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(rounded))


def test_a_saved_checkpoint_has_the_bytes_of_the_loaded_one(checkpoint, tmp_path):
    axes = (jax.sharding.AxisType.Auto,) * 2
    # Parameters that are divided over the devices of a process are put together.
    mesh = jax.make_mesh((1, 8), ("data", "fsdp"), axis_types=axes)
    params = FAMILY.load(checkpoint, mesh)[1]
    assert not params["wte"]["embedding"][...].sharding.is_fully_replicated
    FAMILY.save(tmp_path / "saved", params, checkpoint)
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == _tensors().keys()
    assert all(np.array_equal(saved[name], v) for name, v in _tensors().items())
    for name in ("config.json", "vocab.json", "merges.txt"):
        assert (tmp_path / "saved" / name).read_bytes() == (
            checkpoint / name
        ).read_bytes()


def _without(name):
    return {key: value for key, value in _tensors().items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "fields", "words"),
    [
        (_without("h.1.ln_2.bias"), {}, ("1 of 28", "'h.1.ln_2.bias'", "Take all")),
        (
            _tensors() | {"wpe.weight": np.zeros((8, 24), np.float32)},
            {},
            ("model.safetensors", "'wpe.weight'", "[8, 24]", "[16, 24]", "Take both"),
        ),
        (None, {"n_layer": 1}, ("'h.1.", "no part of GPT-2", "config.json")),
        (None, {"activation_function": "relu"}, ("config.json", "'relu'", "gelu_new")),
        (None, {"model_type": "llama"}, ("config.json", "'llama'", "such as gpt2")),
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


def _read_all(folder, mesh):
    FAMILY.load(folder, mesh)
    tokenizer = gpt2_text.read_tokenizer(folder)
    gpt2_text.read_rows(folder / "text.txt", tokenizer, length=32, vocabulary=384)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", None, ("No such file", "folder of a GPT-2 checkpoint")),
        ("config.json", b"{", ("no JSON", "again")),
        ("model.safetensors", None, ("has neither", "as safetensors")),
        ("model.safetensors", b"\x00" * 20, ("model.safetensors", "again")),
        ("vocab.json", None, ("neither tokenizer.json", "merges.txt")),
        ("vocab.json", b"[", ("unreadable", "again")),
        ("text.txt", None, ("text.txt: No such file", "JSON lines")),
        ("text.txt", b"\xff\xfe", ("text.txt", "UTF-8")),
        ("text.txt", b"a few words", ("text.txt", "a row needs 33", "--length")),
    ],
)
def test_an_unusable_file_is_an_error_that_names_it(
    file, content, words, mesh, tmp_path
):
    finetune_tiny.make_gpt2(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError) as caught:
        _read_all(tmp_path, mesh)
    for word in (str(tmp_path), *words):
        assert word in str(caught.value)


def test_both_forms_of_a_tokenizer_give_the_same_tokens(checkpoint, tmp_path):
    older = gpt2_text.read_tokenizer(checkpoint)
    older.save(str(tmp_path / "tokenizer.json"))
    newer = gpt2_text.read_tokenizer(tmp_path)
    said = "The owner's 42 naïve ranks\n\n  send 日本 text.<|endoftext|>A rank"
    ids = older.encode(said).ids
    assert newer.encode(said).ids == ids
    assert older.token_to_id(gpt2_text.END_OF_TEXT) in ids
    assert older.decode(ids, skip_special_tokens=False) == said
    # Merges have joined bytes into words.
    assert len(older.encode("The owner sends a segment").ids) <= 6


def test_a_document_of_json_lines_ends_with_the_end_of_text(checkpoint, tmp_path):
    path = tmp_path / "documents.jsonl"
    path.write_text('{"body": "A rank"}\n{"body": "The owner"}\n')
    tokenizer = gpt2_text.read_tokenizer(checkpoint)
    rows = gpt2_text.read_rows(path, tokenizer, length=1, vocabulary=384, field="body")
    end = tokenizer.token_to_id(gpt2_text.END_OF_TEXT)
    ids = [*tokenizer.encode("A rank").ids, end, *tokenizer.encode("The owner").ids]
    assert [*rows.tokens[:, 0], rows.tokens[-1, 1]] == [*ids, end]
    with pytest.raises(InputError, match=r'line 1.*"text".*--field'):
        gpt2_text.read_rows(path, tokenizer, length=1, vocabulary=384)
    with pytest.raises(InputError, match="the model has 300"):
        gpt2_text.read_rows(path, tokenizer, length=1, vocabulary=300, field="body")


def test_an_epoch_has_every_row_once_in_an_order_of_its_own():
    rows = Rows(np.arange(10)[:, None])
    epochs = [
        np.concatenate([rows.of_step(step, batch=3, seed=5) for step in steps]).ravel()
        for steps in ((0, 1, 2), (3, 4, 5))
    ]
    assert all(len(set(epoch.tolist())) == 9 for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()
    assert rows.of_step(4, batch=3, seed=5).ravel().tolist() == epochs[1][3:6].tolist()
