"""A tiny, untrained model and small data for it, in the formats of the real ones.

The programs for fine-tuning make them where no checkpoint is given, and read them with
the code that reads a real one. The data is sentences of a small grammar, so that a
short training learns much of it.
"""

from pathlib import Path

import gpt2_model
import numpy as np
from gpt2_text import END_OF_TEXT
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

# Chosen: the model compiles in seconds.
GPT2 = gpt2_model.Config(vocab_size=384, n_positions=64, n_embd=32, n_layer=2, n_head=4)

# Standard deviation of the weights. Source: "initializer_range" of GPT-2.
GPT2_DEVIATION = 0.02

# The data of the model in its folder.
TEXT = "text.txt"

# Chosen: with the default batch an epoch of GPT-2 has 21 steps.
SENTENCES = 4000

# The parts of a sentence, in their order.
GRAMMAR = (
    ("A rank", "The owner", "One lane", "The endpoint", "A slow peer"),
    ("sends", "adds", "returns", "defers", "waits for", "acknowledges"),
    ("a segment", "its shard", "the late data", "the sum", "a contribution"),
    ("in this step", "before the deadline", "with the next call", "at the end"),
)


def sentences() -> list[tuple[str, ...]]:
    """Returns the parts of random sentences, the same in each call."""
    generator = np.random.default_rng(0)
    parts = [generator.choice(part, SENTENCES) for part in GRAMMAR]
    return list(zip(*parts, strict=True))


def make_gpt2(folder: Path) -> None:
    """Writes a GPT-2 and the text into a folder, unless it has them."""
    if (folder / TEXT).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(" ".join(sentence) + ".\n" for sentence in sentences())
    _train_tokenizer(text).model.save(str(folder))
    gpt2_model.FAMILY.write_untrained(folder, GPT2, GPT2_DEVIATION)
    # The last file: it marks a complete folder.
    (folder / TEXT).write_text(text)


def _train_tokenizer(text: str) -> Tokenizer:
    """Returns a byte-level BPE of the text, with `GPT2.vocab_size` tokens at most."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=GPT2.vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer
