"""The tasks of `accuracy.py` and `tta.py`: data and models.

* fashion: the 70,000 images of Fashion-MNIST, from Debian's package
  dataset-fashion-mnist, a network with two convolutions.
* text: the texts of Python's `help()` about the language, 32 characters at a time, a
  transformer of one layer that predicts the next character.
* glosses: those of WordNet and their 45 classes, from Debian's package wordnet-base,
  and MiniLM, a pretrained encoder; see examples/finetune_encoder.py. The variable
  MINILM names the folder of its checkpoint.
"""

import dataclasses
import functools
import gzip
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from pydoc_data import topics
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx

# Where the packages of Debian have their files.
FASHION = Path("/usr/share/datasets/fashion-mnist")
WORDNET = Path("/usr/share/wordnet")

# The held-out part of the text is every tenth piece. An accuracy is that of so many
# held-out examples at most. Chosen: a rank evaluates them in a second; one of them is
# 0.2 points.
TEXT_HELD_OUT, HELD_OUT_MAX = 10, 512

# Tokens of a gloss. Chosen: one of ten is longer.
TOKENS = 32

# Characters of the model: line feed, then ASCII from blank to tilde.
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
PIECE = 32  # characters


class Model(Protocol):
    """A model, with the functions of Linen."""

    def init(self, key: jax.Array, inputs: Any) -> Any:
        """Returns parameters."""
        ...

    def apply(self, params: Any, inputs: Any) -> jax.Array:
        """Returns logits."""
        ...


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of training.

    Attributes:
      model: maps inputs to logits, one row for each target.
      inputs: [examples, ...].
      targets: int32, [examples] or [examples, characters].
      held_out_inputs: inputs of the measured accuracy.
      held_out_targets: targets of these.
      batch_per_rank: examples of each rank in each step.
      rates: learning rate by optimizer.
      noted_every: steps between two evaluations.
    """

    model: Model
    inputs: np.ndarray
    targets: np.ndarray
    held_out_inputs: np.ndarray
    held_out_targets: np.ndarray
    batch_per_rank: int
    rates: Mapping[str, float]
    noted_every: int = 5

    def start(self, seed: int) -> Any:
        """Returns the first parameters, arrays of numpy."""
        init = self.model.init
        if isinstance(self.model, nn.Module):
            # One program in place of one of each operation, which takes seconds.
            init = jax.jit(init)
        params = init(jax.random.key(seed), self.held_out_inputs[:1])
        return jax.tree.map(np.asarray, params)

    def batches(self, seed: int, rank: int, ranks: int) -> Iterator[list[np.ndarray]]:
        """Yields this rank's part of each batch, without end.

        All ranks draw the same permutation of the examples for each epoch.
        """
        generator = np.random.default_rng(seed)
        size = self.batch_per_rank * ranks
        while True:
            order = generator.permutation(len(self.inputs))
            for start in range(0, len(order) - size + 1, size):
                first = start + self.batch_per_rank * rank
                mine = order[first : first + self.batch_per_rank]
                yield [self.inputs[mine], self.targets[mine]]

    def loss(self, params: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Returns the mean cross-entropy, in nats."""
        logits = self.model.apply(params, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def evaluate(self, params: Any) -> jax.Array:
        """Returns (accuracy, loss) on the held-out examples, float32 [2]."""
        inputs, targets = map(
            jnp.asarray, (self.held_out_inputs, self.held_out_targets)
        )
        right = self.model.apply(params, inputs).argmax(-1) == targets
        return jnp.stack([right.mean(), self.loss(params, inputs, targets)])


class FashionNet(nn.Module):
    """Two convolutions and two dense layers: 105,866 parameters."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images, uint8 [n, 28, 28], to logits [n, 10]."""
        x = images[..., None].astype(jnp.float32) / 255
        for channels in (16, 32):
            x = nn.relu(nn.Conv(channels, (3, 3))(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))
        return nn.Dense(10)(x)


class TextNet(nn.Module):
    """A causal transformer of one layer: 96,016 parameters."""

    width: int = 80

    @nn.compact
    def __call__(self, characters: jax.Array) -> jax.Array:
        """Maps characters [n, length] to logits of the next ones [n, length, 96]."""
        positions = jnp.arange(characters.shape[-1])
        x = nn.Embed(len(ALPHABET), self.width)(characters)
        x = x + nn.Embed(PIECE, self.width)(positions)
        mask = nn.make_causal_mask(characters)
        attention = nn.MultiHeadDotProductAttention(num_heads=4)
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        hidden = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
        x = x + nn.Dense(self.width)(hidden)
        return nn.Dense(len(ALPHABET))(nn.LayerNorm()(x))


@functools.cache
def load(task: str) -> Task:
    """Returns a task by name."""
    return {"fashion": _fashion, "text": _text, "glosses": _glosses}[task]()


def _fashion() -> Task:
    parts: list[np.ndarray] = []
    for part in ("train", "t10k"):
        # Source: the format IDX, whose header has 16 bytes for images, 8 for labels.
        images = _unpacked(f"{part}-images-idx3-ubyte.gz")[16:].reshape(-1, 28, 28)
        labels = _unpacked(f"{part}-labels-idx1-ubyte.gz")[8:].astype(np.int32)
        parts += [images, labels]
    parts[2:] = (part[:HELD_OUT_MAX] for part in parts[2:])
    # Chosen: by hand, the highest rates with a smooth loss.
    rates = {"sgd": 0.05, "adamw": 2e-3}
    return Task(FashionNet(), *parts, batch_per_rank=32, rates=rates)


def _unpacked(name: str) -> np.ndarray:
    path = FASHION / name
    if not path.exists():
        raise SystemExit(f"{path} is missing: apt-get install dataset-fashion-mnist")
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)


class Pretrained:
    """The encoder of a checkpoint, with the functions of Linen."""

    def __init__(self, folder: Path) -> None:
        """Reads the checkpoint in a folder."""
        axes = (jax.sharding.AxisType.Auto,) * 2
        mesh = jax.make_mesh(
            (1, 1), ("data", "fsdp"), axes, devices=jax.local_devices()[:1]
        )
        self._graph, self._params, _ = _example("encoder_model").FAMILY.load(
            folder, mesh
        )

    def init(self, key: jax.Array, inputs: Any) -> Any:
        """Returns the parameters of the checkpoint, and zeros for the classifier."""
        del key, inputs
        return self._params

    def apply(self, params: Any, inputs: Any) -> jax.Array:
        """Maps tokens, int32 [n, TOKENS], to logits [n, 45]."""
        return nnx.merge(self._graph, params)(inputs)


def _example(name: str) -> Any:
    """Imports a module of `examples`, whose folder only some programs have."""
    return importlib.import_module(name)


def _glosses() -> Task:
    folder, read = Path(os.environ["MINILM"]), _example("encoder_text").read_glosses
    rows, held_out = (part.tokens for part in read(folder, WORDNET, TOKENS))
    held_out = held_out[:: len(held_out) // HELD_OUT_MAX][:HELD_OUT_MAX]
    parts = rows[:, 1:], rows[:, 0], held_out[:, 1:], held_out[:, 0]
    # Chosen: by hand, the rate of the example; at 1e-4 the target takes over 40 steps.
    model, rates = Pretrained(folder), {"adamw": 3e-4}
    return Task(model, *parts, batch_per_rank=8, rates=rates, noted_every=10)


def _text() -> Task:
    text = "\n".join(value for _, value in sorted(topics.topics.items()))
    # Other characters become the last one of the alphabet.
    codes = np.full(0x110000, len(ALPHABET) - 1, np.int32)
    codes[list(map(ord, ALPHABET))] = np.arange(len(ALPHABET))
    corpus = codes[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
    # One more character: the targets are the inputs, shifted by one.
    rows = corpus[: len(corpus) // (PIECE + 1) * (PIECE + 1)].reshape(-1, PIECE + 1)
    parts = _parts(rows[:, :-1], rows[:, 1:], TEXT_HELD_OUT)
    parts[2:] = (part[:HELD_OUT_MAX] for part in parts[2:])
    rates = {"sgd": 0.1, "adamw": 3e-3}
    return Task(TextNet(), *parts, batch_per_rank=16, rates=rates)


def _parts(inputs: np.ndarray, targets: np.ndarray, every: int) -> list[np.ndarray]:
    """Returns inputs and targets for training, and the held-out ones."""
    held_out = np.arange(len(inputs)) % every == 0
    return [inputs[~held_out], targets[~held_out], inputs[held_out], targets[held_out]]
