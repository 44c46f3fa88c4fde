"""A tiny, untrained GPT-2 and a small text, in the formats of the real ones.

The examples make them where no checkpoint is given, and read them with the code that
reads a real one. The text is sentences of a small grammar, so that a short training
learns much of it.
"""

import dataclasses
import json
from pathlib import Path

import gpt2_model
import numpy as np
from gpt2_text import END_OF_TEXT
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

# Chosen: the model compiles in seconds.
CONFIG = gpt2_model.Config(
    vocab_size=384, n_positions=64, n_embd=32, n_layer=2, n_head=4
)

TEXT = "text.txt"

# Chosen: with the default batch an epoch has 21 steps.
SENTENCES = 4000

# Standard deviation of the weights. Source: GPT-2, "initializer_range".
INITIAL = 0.02

# The parts of a sentence, in their order.
GRAMMAR = (
    ("A rank", "The owner", "One lane", "The endpoint", "A slow peer"),
    ("sends", "adds", "returns", "defers", "waits for", "acknowledges"),
    ("a segment", "its shard", "the late data", "the sum", "a contribution"),
    ("in this step", "before the deadline", "with the next call", "at the end"),
)


def make(folder: Path) -> None:
    """Writes the checkpoint and the text into a folder, unless it has them."""
    if (folder / TEXT).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    words = [generator.choice(part, SENTENCES) for part in GRAMMAR]
    text = "".join(" ".join(sentence) + ".\n" for sentence in zip(*words, strict=True))
    _train_tokenizer(text).model.save(str(folder))
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        **dataclasses.asdict(CONFIG),
    }
    (folder / gpt2_model.CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    gpt2_model.write_tensors(folder, initial_tensors(CONFIG, seed=0))
    # The last file: it marks a complete folder.
    (folder / TEXT).write_text(text)


def _train_tokenizer(text: str) -> Tokenizer:
    """Returns a byte-level BPE of the text, with `CONFIG.vocab_size` tokens at most."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG.vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def initial_tensors(config: gpt2_model.Config, seed: int) -> dict[str, np.ndarray]:
    """Draws the tensors of an untrained model, float32, by name."""
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, shape in sorted(gpt2_model.shapes(config).items()):
        if name.endswith(".bias"):
            tensors[name] = np.zeros(shape, np.float32)
        elif len(shape) == 1:
            tensors[name] = np.ones(shape, np.float32)
        else:
            tensors[name] = INITIAL * generator.standard_normal(shape, np.float32)
    return tensors
