"""Tiny, untrained models and small data for them, in the formats of the real ones.

The programs for fine-tuning make them where no checkpoint is given, and read them with
the code that reads a real one. The data is sentences of a small grammar, so that a
short training learns much of it.
"""

from pathlib import Path

import encoder_model
import encoder_text
import gpt2_model
import numpy as np
from gpt2_text import END_OF_TEXT
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

# Chosen: the models compile in seconds.
GPT2 = gpt2_model.Config(vocab_size=384, n_positions=64, n_embd=32, n_layer=2, n_head=4)
ENCODER = encoder_model.Config(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
)

# Standard deviations of the weights. Source: the first is "initializer_range" of GPT-2.
# The other one is chosen: with that of BERT, 0.02, the tiny encoder learns no class.
GPT2_DEVIATION, ENCODER_DEVIATION = 0.02, 0.2

# The data of each model in its folder.
TEXT, GLOSSES = "text.txt", "wordnet"

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


def make_encoder(folder: Path) -> None:
    """Writes an encoder and glosses into a folder, unless it has them."""
    if (folder / GLOSSES).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer_of_words().save(str(folder / "tokenizer.json"))
    encoder_model.FAMILY.write_untrained(folder, ENCODER, ENCODER_DEVIATION)
    # A gloss is verb and object; its class is that of the verb.
    first = encoder_model.CLASSES - len(GRAMMAR[1])
    numbers = {verb: first + number for number, verb in enumerate(GRAMMAR[1])}
    lines = [
        f"{offset:08} {numbers[verb]} v 01 word 0 000 | {verb} {its}  \n"
        for offset, (_, verb, its, _) in enumerate(sentences())
    ]
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for number, name in enumerate(encoder_text.FILES):
        (data / name).write_text("".join(lines[number :: len(encoder_text.FILES)]))
    data.rename(folder / GLOSSES)


def _tokenizer_of_words() -> Tokenizer:
    """Returns a tokenizer in the form of BERT's, with the words of the grammar."""
    words = {word for part in GRAMMAR for one in part for word in one.lower().split()}
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(words)]
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(ids))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer
