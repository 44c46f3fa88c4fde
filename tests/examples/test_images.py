"""The images of the examples: the archive of CIFAR-10, and its damaged relatives."""

import io
import os
import pickle
import sys
import tarfile
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

EXAMPLES = Path(__file__).parents[2] / "examples"

PER_BATCH = 7


@pytest.fixture(scope="module")
def images():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import images

        yield images
    finally:
        sys.path.remove(str(EXAMPLES))


class _OfPython2(pickle._Pickler):
    """Pickles as Python 2 did, of which the official batches are: text is bytes."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, text):
        value = text.encode("latin1") if isinstance(text, str) else text
        short = len(value) < 256
        head = b"U" + bytes([len(value)]) if short else b"T"
        self.write(head if short else head + len(value).to_bytes(4, "little"))
        self.write(value)
        self.memoize(text)

    dispatch[bytes] = dispatch[str] = save_bytes

    def save_global(self, value, name=None):
        if getattr(value, "__name__", "") == "_reconstruct":
            self.write(b"cnumpy.core.multiarray\n_reconstruct\n")
            self.memoize(value)
        else:
            super().save_global(value, name)

    dispatch[type(np.zeros(0).__reduce__()[0])] = save_global


def _pickled(batch, pickler=_OfPython2):
    file = io.BytesIO()
    pickler(file, 2).dump(batch)
    return file.getvalue()


def _batch(number):
    draw = np.random.default_rng(number)
    return {
        b"batch_label": b"training batch %d of 5" % number,
        b"labels": draw.integers(0, 10, PER_BATCH).tolist(),
        b"data": draw.integers(0, 256, (PER_BATCH, 3072), np.uint8),
        b"filenames": [b"image_%d.png" % i for i in range(PER_BATCH)],
    }


def _archive(path, **changed):
    """Writes an archive in the official form, with other contents of some files."""
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    contents = {
        "readme.html": b"<html>",
        "batches.meta": _pickled({b"label_names": [b"airplane"]}),
        **{name: _pickled(_batch(i)) for i, name in enumerate(names, 1)},
    } | changed
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            if content is not None:
                member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def test_the_archive_is_read_as_it_was_written(images, tmp_path):
    loaded = images.load(_archive(tmp_path / "cifar-10-python.tar.gz"))
    assert loaded.shape == (32, 32, 3)
    assert loaded.mirrored
    assert len(loaded.training) == 5 * PER_BATCH
    written = [_batch(i) for i in range(1, 7)]
    expected = [x for batch in written[:5] for x in batch[b"labels"]]
    assert loaded.training.labels.tolist() == expected
    assert loaded.held_out.labels.tolist() == written[5][b"labels"]
    # A row is red, green, blue; each line by line.
    row = written[2][b"data"][4]
    image = loaded.training.images[2 * PER_BATCH + 4]
    assert image[5, 9].tolist() == [row[c * 1024 + 5 * 32 + 9] for c in range(3)]
    assert np.array_equal(image.transpose(2, 0, 1).ravel(), row)


def test_a_batch_of_python_3_is_read_too(images, tmp_path):
    class Pickler(pickle.Pickler):
        """A pickler that writes the names of this NumPy."""

    batch = {key: value for key, value in _batch(1).items() if key != b"filenames"}
    content = io.BytesIO()
    Pickler(content, 4).dump(batch)
    path = _archive(tmp_path / "archive.tar.gz", data_batch_1=content.getvalue())
    assert images.load(path).training.labels[:PER_BATCH].tolist() == batch[b"labels"]


class _Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, mark):
        self._mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self._mark),)


def _changed(**entries):
    return _pickled(_batch(1) | {key.encode(): x for key, x in entries.items()})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "data_batch_1 is missing"),
        (b"", "no batch of CIFAR-10"),
        (_pickled(_batch(1))[:5000], "no batch of CIFAR-10"),
        (_pickled([1, 2, 3]), "a dictionary with b'data'"),
        (_changed(data=np.zeros((7, 100), np.uint8)), "expected (n, 3072) and (n,)"),
        (_changed(data=np.zeros((7, 3072))), "the type b'f8', not 'u1'"),
        (_changed(labels=[0] * 6), "expected (n, 3072) and (n,)"),
        (_changed(labels=[10] * 7), "labels from 10 to 10; expected 0 to 9"),
        (_changed(data=b"pixels"), "no batch of CIFAR-10"),
        (_changed(data=np.zeros((7, 3072), object)), "not 'u1'"),
        # Instructions in a senseless order: it has no object to give a state.
        (b"\x80\x02cnumpy\ndtype\nq\x00b.", "no batch of CIFAR-10"),
    ],
)
def test_a_wrong_batch_is_an_error_with_its_reason(images, tmp_path, content, reason):
    path = _archive(tmp_path / "archive.tar.gz", data_batch_1=content)
    with pytest.raises(images.ArchiveError) as caught:
        images.load(path)
    message = str(caught.value)
    assert reason in message
    assert "Download cifar-10-python.tar.gz again" in message


def test_a_batch_that_runs_code_runs_none(images, tmp_path):
    mark = tmp_path / "mark"
    content = _pickled(_batch(1) | {b"more": _Malicious(mark)})
    path = _archive(tmp_path / "archive.tar.gz", data_batch_3=content)
    with pytest.raises(images.ArchiveError, match=r"asks for posix\.mkdir"):
        images.load(path)
    assert not mark.exists()
    # The pickle is one that works elsewhere.
    pickle.loads(content, encoding="bytes")  # noqa: S301
    assert mark.exists()


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"\x1f\x8b damaged"])
def test_a_file_that_is_no_archive_is_an_error(images, tmp_path, content):
    path = tmp_path / "cifar-10-python.tar.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(images.ArchiveError, match="Give the path of"):
        images.load(path)


def test_a_huge_batch_is_not_read(images, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "BATCH_BYTES_MAX", 1000)
    with pytest.raises(images.ArchiveError, match="expected a file of at most 1,000"):
        images.load(_archive(tmp_path / "archive.tar.gz"))


def test_alterations_shift_and_mirror(images):
    draw = np.random.default_rng(0)
    pixels = draw.integers(1, 256, (40, 32, 32, 3), np.uint8)
    altered = images.altered(pixels, draw, mirrored=True)
    assert altered.shape == pixels.shape
    mirrored = 0
    for before, after in zip(pixels, altered, strict=True):
        padded = np.pad(before, ((4, 4), (4, 4), (0, 0)))
        views = np.lib.stride_tricks.sliding_window_view(padded, (32, 32, 3))[:, :, 0]
        shifts = [
            (views == after).all((2, 3, 4)),
            (views == after[:, ::-1]).all((2, 3, 4)),
        ]
        assert sum(s.sum() for s in shifts) == 1
        mirrored += int(shifts[1].sum())
    assert 10 < mirrored < 30


def test_each_epoch_has_each_image_once(images):
    mesh = jax.make_mesh((8,), ("data",))
    digits = images.load(None)
    feed = images.Feed(digits, 64, NamedSharding(mesh, P("data")))
    assert feed.steps_per_epoch == 1347 // 64
    batches = feed.training(seed=1)
    counts = np.zeros(10)
    for _ in range(feed.steps_per_epoch):
        x, labels = next(batches)
        assert x.shape == (64, 8, 8, 1)
        counts += np.bincount(np.asarray(labels), minlength=10)
    # All but the images of the last, incomplete batch.
    lacking = np.bincount(digits.training.labels, minlength=10) - counts
    assert (lacking >= 0).all()
    assert lacking.sum() == 1347 % 64
    # The images that fill up the last batch count as wrong.
    assert feed.accuracy(lambda _, labels: (labels >= 0).sum()) == 1


def test_too_large_a_batch_is_an_error(images):
    sharding = NamedSharding(jax.make_mesh((8,), ("data",)), P("data"))
    with pytest.raises(ValueError, match="use a smaller batch"):
        images.Feed(images.load(None), 1400, sharding)
