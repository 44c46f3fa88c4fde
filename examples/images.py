"""Images for the examples: the archive of CIFAR-10, or the digits of scikit-learn.

A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009, describes
CIFAR-10: 60,000 colour images of 32 x 32 pixels in ten classes. Its archive for Python,
`cifar-10-python.tar.gz`, holds six batches as pickles of dictionaries.
"""

import dataclasses
import io
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

CLASSES = 10

# Size of the images of CIFAR-10, in pixels and colours.
CIFAR_SIDE, CIFAR_COLOURS = 32, 3

# The files of the archive, in its folder `cifar-10-batches-py`.
TRAINING_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
HELD_OUT_BATCH = "test_batch"

# Largest accepted batch, in bytes. Chosen: twice the 31 MB of an official one.
BATCH_BYTES_MAX = 64_000_000

# Training images whose mean and variance scale all of them. Chosen: they need little
# memory and give both to a thousandth.
SCALE_IMAGES = 5_000

# Label of the images that fill up the last held-out batch; no model predicts it.
NO_LABEL = -1


class ArchiveError(Exception):
    """The archive cannot be read, for the reason in the message."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Images and their labels.

    Attributes:
      images: uint8 [n, height, width, colours].
      labels: int32 [n], each in [0, 10).
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self.labels)


@dataclasses.dataclass(frozen=True)
class Images:
    """A set of images.

    Attributes:
      name: for people.
      training: images for training.
      held_out: other images.
      mirrored: whether the mirror image of an image has the same label.
    """

    name: str
    training: Split
    held_out: Split
    mirrored: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns height, width and colours of an image."""
        return self.training.images.shape[1:]


def load(path: str | Path | None) -> Images:
    """Returns the images of an archive, or without a path those of scikit-learn.

    Args:
      path: of `cifar-10-python.tar.gz`; None or "" for the 1,797 digits of 8 x 8 pixels
        that scikit-learn contains.

    Raises:
      ArchiveError: no file of this path is an archive of CIFAR-10.
    """
    if path:
        return _cifar10(Path(path))
    pixels, digits = map(np.asarray, load_digits(return_X_y=True))
    images = pixels.astype(np.uint8).reshape(-1, 8, 8, 1)
    parts = train_test_split(
        images,
        digits.astype(np.int32),
        test_size=0.25,
        stratify=digits,
        random_state=0,
    )
    images, held_out_images, labels, held_out_labels = map(np.asarray, parts)
    held_out = Split(held_out_images, held_out_labels)
    return Images("digits", Split(images, labels), held_out, mirrored=False)


# --- The archive ---------------------------------------------------------------------


def _cifar10(path: Path) -> Images:
    try:
        with tarfile.open(path, "r:*") as archive:
            members = {Path(member.name).name: member for member in archive}
            batches = [
                _batch(path, archive, members.get(name), name)
                for name in (*TRAINING_BATCHES, HELD_OUT_BATCH)
            ]
    except (OSError, EOFError, tarfile.TarError) as error:
        raise ArchiveError(
            f"{path} cannot be read ({error}). Give the path of "
            "cifar-10-python.tar.gz, which https://www.cs.toronto.edu/~kriz/cifar.html "
            "offers; without a path the examples train on digits."
        ) from error
    *training, held_out = batches
    together = Split(
        np.concatenate([batch.images for batch in training]),
        np.concatenate([batch.labels for batch in training]),
    )
    return Images("CIFAR-10", together, held_out, mirrored=True)


def _batch(
    path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo | None, name: str
) -> Split:
    """Reads one batch of the archive."""
    if member is None or not member.isfile() or member.size > BATCH_BYTES_MAX:
        found = "is missing"
        if member is not None:
            kind = "file" if member.isfile() else "special file"
            found = f"is a {kind} of {member.size:,} bytes"
        raise ArchiveError(
            f"{path}: {name} {found}; expected a file of at most "
            f"{BATCH_BYTES_MAX:,} bytes. Download cifar-10-python.tar.gz again; the "
            "archives for Matlab and C have other files."
        )
    file: Any = archive.extractfile(member)
    try:
        return _checked(_BatchUnpickler(io.BytesIO(file.read())).load())
    # A damaged or forged pickle may raise anything: its instructions may do anything
    # that the admitted names permit, in any order.
    except Exception as error:
        raise ArchiveError(
            f"{path}: {name} is no batch of CIFAR-10 ({type(error).__name__}: {error})."
            " Download cifar-10-python.tar.gz again, and do not unpickle this one by "
            "other means: a pickle can run any program."
        ) from error


class _Record:
    """In the place of an array, or of its type: the state that the pickle gives it."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        """Keeps the state; computes nothing."""
        self.state = state


class _BatchUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, numbers, bytes and arrays; runs no code of the file.

    A pickle names the functions that make its objects, any function of any module. The
    names that an array needs make a `_Record` here, all others are errors.
    """

    _ADMITTED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
    )

    def __init__(self, file: io.BytesIO) -> None:
        # The official batches are of Python 2, where text is bytes.
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """Returns `_Record` for the names of an array."""
        if (module, name) not in self._ADMITTED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which is no part of an array"
            )
        return _Record


def _checked(batch: Any) -> Split:
    """Returns the content of an unpickled batch.

    Raises:
      ValueError: it is not that of CIFAR-10.
      TypeError: the same.
    """
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise ValueError("a dictionary with b'data' and b'labels' is expected")
    pixels = _array(batch[b"data"])
    labels = np.asarray(batch[b"labels"], np.int64)
    length = CIFAR_COLOURS * CIFAR_SIDE**2
    if (
        pixels.ndim != 2
        or pixels.shape[1] != length
        or labels.shape != pixels.shape[:1]
    ):
        raise ValueError(
            f"the pixels have the shape {pixels.shape}, the labels {labels.shape}; "
            f"expected (n, {length}) and (n,)"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < CLASSES:
        raise ValueError(
            f"labels from {labels.min()} to {labels.max()}; expected 0 to {CLASSES - 1}"
        )
    # A row has the red pixels first, line by line, then the green and the blue ones.
    colours = pixels.reshape(-1, CIFAR_COLOURS, CIFAR_SIDE, CIFAR_SIDE)
    images = np.ascontiguousarray(colours.transpose(0, 2, 3, 1))
    return Split(images, labels.astype(np.int32))


def _array(record: Any) -> np.ndarray:
    """Makes an array from its pickled state: version, shape, type, order, bytes."""
    _, shape, kind, columns_first, values = record.state
    if kind.arguments[0] not in (b"u1", "u1") or not isinstance(values, bytes):
        raise ValueError(f"the pixels have the type {kind.arguments[0]!r}, not 'u1'")
    order = "F" if columns_first else "C"
    return np.frombuffer(values, np.uint8).reshape(shape, order=order)


# --- Batches -------------------------------------------------------------------------


class Feed:
    """Batches of a set, as arrays that are divided over the devices of all processes.

    Each process makes its own part of each batch.
    """

    def __init__(self, images: Images, batch: int, sharding: NamedSharding) -> None:
        """Describes the batches.

        Args:
          images: the set.
          batch: images of each process in a batch.
          sharding: of a batch, along its first dimension.

        Raises:
          ValueError: the set has too few images for one batch.
        """
        self._images, self._batch, self._sharding = images, batch, sharding
        self._of_all = batch * jax.process_count()
        self._first = batch * jax.process_index()
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"{images.name} has {len(images.training)} images for training, less "
                f"than a batch of {batch} in each of {jax.process_count()} processes; "
                "use a smaller batch."
            )
        # All images have the scale of the training images.
        pixels = images.training.images[:SCALE_IMAGES].astype(np.float64)
        self._mean = pixels.mean((0, 1, 2)).astype(np.float32)
        self._std = pixels.std((0, 1, 2)).astype(np.float32)

    @property
    def steps_per_epoch(self) -> int:
        """Returns the number of whole batches in the training images."""
        return len(self._images.training) // self._of_all

    def training(self, seed: int) -> Iterator[tuple[jax.Array, jax.Array]]:
        """Yields training batches without end.

        All processes draw the same order of the images for each epoch, and each takes
        its own part; each alters its images in its own way, see `altered`.

        Args:
          seed: of the order and the alterations.

        Yields:
          Images, float32 [n, height, width, colours], and labels, int32 [n].
        """
        training, mirrored = self._images.training, self._images.mirrored
        order_draw = np.random.default_rng(seed)
        own_draw = np.random.default_rng([seed, jax.process_index()])
        while True:
            order = order_draw.permutation(len(training))
            for step in range(self.steps_per_epoch):
                mine = order[step * self._of_all + self._first :][: self._batch]
                pixels = altered(training.images[mine], own_draw, mirrored=mirrored)
                yield self._placed(pixels, training.labels[mine])

    def accuracy(self, count: Callable[[jax.Array, jax.Array], jax.Array]) -> float:
        """Returns the share of the held-out images with the right prediction.

        Args:
          count: images and labels of a batch to the number of right predictions, int32
            []. The last batch is filled up with images of the label `NO_LABEL`.
        """
        held_out = self._images.held_out
        right = []
        for start in range(0, len(held_out), self._of_all):
            mine = slice(start + self._first, start + self._first + self._batch)
            pixels, labels = held_out.images[mine], held_out.labels[mine]
            lacking = self._batch - len(labels)
            pixels = np.pad(pixels, ((0, lacking), (0, 0), (0, 0), (0, 0)))
            labels = np.pad(labels, (0, lacking), constant_values=NO_LABEL)
            right.append(count(*self._placed(pixels, labels)))
        return sum(map(int, right)) / len(held_out)

    def _placed(
        self, pixels: np.ndarray, labels: np.ndarray
    ) -> tuple[jax.Array, jax.Array]:
        scaled = (pixels.astype(np.float32) - self._mean) / self._std
        return (
            jax.make_array_from_process_local_data(self._sharding, scaled),
            jax.make_array_from_process_local_data(self._sharding, labels),
        )


def altered(
    pixels: np.ndarray, draw: np.random.Generator, *, mirrored: bool
) -> np.ndarray:
    """Shifts images at random, and mirrors half of them.

    A shift is by an eighth of the height at most: 4 pixels in CIFAR-10, as in K. He et
    al., *Deep Residual Learning for Image Recognition*, 2015, section 4.2.

    Args:
      pixels: uint8 [n, height, width, colours].
      draw: the random numbers.
      mirrored: whether to mirror images.
    """
    number, height, width, _ = pixels.shape
    edge = height // 8
    padded = np.pad(pixels, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (1, 2))
    down, right = draw.integers(0, 2 * edge + 1, (2, number))
    shifted = views[np.arange(number), down, right].transpose(0, 2, 3, 1)
    if not mirrored:
        return shifted
    chosen = draw.random(number) < 0.5
    return np.where(chosen[:, None, None, None], shifted[:, :, ::-1], shifted)
