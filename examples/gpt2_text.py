"""Text for the fine-tuning of GPT-2, as rows of tokens.

    tokenizer = read_tokenizer(folder)
    rows = read_rows(path, tokenizer, length=128, vocabulary=50257)

The text is a file, or JSON lines with one document each (.jsonl). Its tokens, with
<|endoftext|> after each document, are cut into rows.
"""

import argparse
import json
from pathlib import Path

import finetune_setup
import gpt2_model
import numpy as np
from finetune_setup import Rows
from hugging_face import InputError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"


def add_arguments(parser: argparse.ArgumentParser, output: str) -> None:
    """Adds the options of the programs for GPT-2; `output` is a folder."""
    finetune_setup.add_arguments(parser, output, length=512)
    add = parser.add_argument
    add("--text", type=Path, help="a text file, or JSON lines (.jsonl)")
    add("--field", default="text", help="of each JSON line (default text)")


def read_text(args: argparse.Namespace, folder: Path, path: Path) -> Rows:
    """Reads the text for the model in a folder.

    Raises:
      InputError: see `read_rows` and `finetune_setup.check`.
    """
    config = gpt2_model.FAMILY.read_config(folder)
    rows = read_rows(
        path,
        read_tokenizer(folder),
        length=min(args.length, config.n_positions),
        vocabulary=config.vocab_size,
        field=args.field,
    )
    finetune_setup.check(args, rows, path)
    return rows


def read_tokenizer(folder: Path) -> Tokenizer:
    """Reads the byte-level BPE of a checkpoint: tokenizer.json, or the older files.

    Raises:
      InputError: the files are missing or unreadable.
    """
    file = folder / "tokenizer.json"
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if not file.exists() and not (vocabulary.exists() and merges.exists()):
        raise InputError(
            f"{folder} has neither tokenizer.json nor both vocab.json and merges.txt. "
            "Download the files of the tokenizer as well."
        )
    try:
        if file.exists():
            return Tokenizer.from_file(str(file))
        model = models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # The library raises no narrower class.
        raise InputError(
            f"the tokenizer in {folder} is unreadable: {error}. Download it again."
        ) from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def read_documents(path: Path, field: str = "text") -> list[str]:
    """Returns the documents of a file: of JSON lines each line, else the whole.

    Args:
      path: of the file; JSON lines end in .jsonl.
      field: of each JSON object, with the text.

    Raises:
      InputError: the file is missing, or has another format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}. Give a text file, or JSON lines (.jsonl)."
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {error}. Convert the file to UTF-8.") from error
    if path.suffix != ".jsonl":
        return [text]
    documents = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            document = json.loads(line)[field]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f'{path}, line {number}: expected {{"{field}": "…"}}, got '
                f"{line[:60]!r}. Name the field of the text with --field."
            ) from error
        documents.append(str(document))
    return documents


def read_rows(
    path: Path,
    tokenizer: Tokenizer,
    *,
    length: int,
    vocabulary: int,
    field: str = "text",
) -> Rows:
    """Reads and cuts a text.

    A row begins with the last token of the one before it.

    Args:
      path: see `read_documents`.
      tokenizer: of the checkpoint.
      length: predicted tokens of a row.
      vocabulary: number of tokens of the model.
      field: see `read_documents`.

    Raises:
      InputError: the text is unreadable, or shorter than one row; or the tokenizer is
        not that of the model.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    if end is None or tokenizer.get_vocab_size() > vocabulary:
        raise InputError(
            f"the tokenizer has {tokenizer.get_vocab_size()} tokens, {END_OF_TEXT} "
            f"{'not ' if end is None else ''}among them, and the model has "
            f"{vocabulary}: take tokenizer and model from one checkpoint."
        )
    encoded = tokenizer.encode_batch(read_documents(path, field))
    parts = [np.asarray([*one.ids, end], np.int32) for one in encoded]
    stream = np.concatenate([np.empty(0, np.int32), *parts])
    count = (len(stream) - 1) // length
    if count < 1:
        raise InputError(
            f"{path} has {len(stream)} tokens, and a row needs {length + 1}: "
            "give more text, or a smaller --length."
        )
    at = length * np.arange(count)[:, None] + np.arange(length + 1)
    return Rows(stream[at])
