"""The glosses of WordNet as rows: the class of a synset, and the tokens of its gloss.

A line of data.noun, data.verb, data.adj or data.adv is a synset: its offset, the number
of its lexicographer file, which is the class, further fields, and the gloss behind a
bar. Source: the manual page wndb(5WN).
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from encoder_model import CLASSES, FAMILY
from finetune_setup import Rows
from hugging_face import InputError
from tokenizers import Tokenizer

FILES = ("data.noun", "data.verb", "data.adj", "data.adv")

# One of so many synsets is held out. Chosen: 5,900 of them measure an accuracy to 1 %.
HELD_OUT = 20


class Synset(NamedTuple):
    """A synset.

    Attributes:
      number: number of its class.
      gloss: text that explains it.
      held_out: whether it is left out of the training.
    """

    number: int
    gloss: str
    held_out: bool


def read_synsets(folder: Path) -> Iterator[Synset]:
    """Yields the synsets of all files.

    Raises:
      InputError: a file is missing, or is none of WordNet.
    """
    for path in (folder / name for name in FILES):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path}: {error}. Give the folder of WordNet's files, such as "
                "/usr/share/wordnet of Debian's package wordnet-base."
            ) from error
        for at, line in enumerate(lines, 1):
            if line.startswith("  "):
                continue  # The licence.
            fields, _, gloss = line.partition(" | ")
            offset, number, *_ = [*fields.split(), "", ""]
            if not (gloss and number.isdecimal() and int(number) < CLASSES):
                raise InputError(
                    f"{path}, line {at}: expected a synset of WordNet, got "
                    f"{line[:60]!r}. Install the files again."
                )
            hashed = zlib.crc32(f"{path.name} {offset}".encode())
            yield Synset(int(number), gloss.strip(), hashed % HELD_OUT == 0)


def read_tokenizer(folder: Path) -> Tokenizer:
    """Reads the tokenizer of a checkpoint.

    Raises:
      InputError: the file is missing or unreadable.
    """
    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises no narrower class.
        raise InputError(f"{path}: {error}. Download it again.") from error


def read_glosses(checkpoint: Path, folder: Path, length: int) -> tuple[Rows, Rows]:
    """Returns the rows for training, and those held out.

    Args:
      checkpoint: folder of the model and its tokenizer.
      folder: of WordNet's files.
      length: tokens of a row; a longer gloss loses its end.

    Raises:
      InputError: a file is unusable, or the tokenizer is not that of the model.
    """
    config = FAMILY.read_config(checkpoint)
    tokenizer = read_tokenizer(checkpoint)
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.get_vocab_size()} tokens, and the model has "
            f"{config.vocab_size}: take tokenizer and model from one checkpoint."
        )
    length = min(length, config.max_position_embeddings)
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=config.pad_token_id)
    synsets = list(read_synsets(folder))
    encoded = tokenizer.encode_batch([synset.gloss for synset in synsets])
    classes = [synset.number for synset in synsets]
    rows = np.column_stack([classes, [one.ids for one in encoded]]).astype(np.int32)
    held_out = np.asarray([synset.held_out for synset in synsets])
    return Rows(rows[~held_out]), Rows(rows[held_out])
