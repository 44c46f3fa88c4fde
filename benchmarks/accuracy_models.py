"""The two tasks of `accuracy.py`: data, without a download, and models.

* digits: 1,797 handwritten digits of scikit-learn, a network with two convolutions.
* text: the texts of Python's `help()` about the language, 32 characters at a time, a
  transformer of one layer that predicts the next character.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pydoc_data import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from sklearn.datasets import load_digits

# Held-out part of the data: every fifth digit, every tenth piece of text.
# Chosen: 360 digits, each of which is 0.3 points; about 2,000 pieces of text, limited
# to those that a rank evaluates in a second.
DIGITS_HELD_OUT, TEXT_HELD_OUT = 5, 10
TEXT_HELD_OUT_MAX = 512

# Characters of the model: line feed, then ASCII from blank to tilde.
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
PIECE = 32  # characters


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
    """

    model: nn.Module
    inputs: np.ndarray
    targets: np.ndarray
    held_out_inputs: np.ndarray
    held_out_targets: np.ndarray
    batch_per_rank: int
    rates: Mapping[str, float]

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

    def loss(self, params: Mapping, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Returns the mean cross-entropy, in nats."""
        logits = self.model.apply(params, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def evaluate(self, params: Mapping) -> jax.Array:
        """Returns (accuracy, loss) on the held-out examples, float32 [2]."""
        inputs, targets = map(
            jnp.asarray, (self.held_out_inputs, self.held_out_targets)
        )
        right = self.model.apply(params, inputs).argmax(-1) == targets
        return jnp.stack([right.mean(), self.loss(params, inputs, targets)])


class DigitNet(nn.Module):
    """Two convolutions and two dense layers: 151,306 parameters."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Maps images [n, 8, 8, 1] to logits [n, 10]."""
        x = nn.relu(nn.Conv(32, (3, 3))(images))
        x = nn.max_pool(nn.relu(nn.Conv(64, (3, 3))(x)), (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(128)(x.reshape(len(x), -1)))
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
    """Returns a task by name, "digits" or "text"."""
    return {"digits": _digits, "text": _text}[task]()


def _digits() -> Task:
    digits = load_digits()
    images = (digits.images / digits.images.max()).astype(np.float32)[..., None]
    parts = _parts(images, digits.target.astype(np.int32), DIGITS_HELD_OUT)
    # Chosen: by hand, the highest rates with a smooth loss.
    rates = {"sgd": 0.05, "adamw": 2e-3}
    return Task(DigitNet(), *parts, batch_per_rank=32, rates=rates)


def _text() -> Task:
    text = "\n".join(value for _, value in sorted(topics.topics.items()))
    # Other characters become the last one of the alphabet.
    codes = np.full(0x110000, len(ALPHABET) - 1, np.int32)
    codes[list(map(ord, ALPHABET))] = np.arange(len(ALPHABET))
    corpus = codes[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
    # One more character: the targets are the inputs, shifted by one.
    rows = corpus[: len(corpus) // (PIECE + 1) * (PIECE + 1)].reshape(-1, PIECE + 1)
    parts = _parts(rows[:, :-1], rows[:, 1:], TEXT_HELD_OUT)
    parts[2:] = (part[:TEXT_HELD_OUT_MAX] for part in parts[2:])
    rates = {"sgd": 0.1, "adamw": 3e-3}
    return Task(TextNet(), *parts, batch_per_rank=16, rates=rates)


def _parts(inputs: np.ndarray, targets: np.ndarray, every: int) -> list[np.ndarray]:
    """Returns inputs and targets for training, and the held-out ones."""
    held_out = np.arange(len(inputs)) % every == 0
    return [inputs[~held_out], targets[~held_out], inputs[held_out], targets[held_out]]
