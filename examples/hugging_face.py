"""Checkpoints of Hugging Face, read as parameters in Flax NNX and written from them.

    graph, params, _ = FAMILY.load(folder, mesh)
    FAMILY.save(other_folder, params, folder)

A checkpoint is a folder with config.json and model.safetensors, or the parts that
model.safetensors.index.json lists. A `Family` describes the checkpoints of one model;
the names of the model's modules are those of the tensors.
"""

import dataclasses
import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

CONFIG, TENSORS, PARTS = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
)

# Names of the parameters in NNX, and in a checkpoint.
WEIGHTS = {"kernel": "weight", "embedding": "weight", "scale": "weight", "bias": "bias"}


class InputError(Exception):
    """A file or an option of the user is unusable, for the reason in the message."""


@dataclasses.dataclass(frozen=True)
class Family:
    """The checkpoints of a model.

    Attributes:
      title: its name.
      examples: names of checkpoints, for a user whose own one is unusable.
      config: the dataclass of its sizes; the names are those of config.json.
      model: makes it, of its sizes and random numbers.
      fixed: fields of config.json that change the computation, and the value that the
        model computes, which is that of a missing field.
      prefix: beginning of all names of tensors, in some checkpoints.
      unused: pattern of the names of tensors that are no parameters of the model.
      added: pattern of the names of parameters that a checkpoint may lack, and that
        begin as zeros then.
      modules: names of modules that have another one in a checkpoint.
      transposed: whether the layout of a linear layer in a checkpoint is [out, in].
    """

    title: str
    examples: str
    config: type[Any]
    model: Callable[[Any, nnx.Rngs], nnx.Module]
    fixed: Mapping[str, Any]
    prefix: str
    unused: str
    added: str = ""
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    transposed: bool = False

    def read_config(self, folder: Path) -> Any:
        """Reads the sizes from config.json.

        Raises:
          InputError: the file is missing, unreadable, or of another model.
        """
        path = folder / CONFIG
        try:
            found = json.loads(path.read_text())
        except OSError as error:
            raise InputError(
                f"{path}: {error.strerror}. Give the folder of a {self.title} "
                f"checkpoint of Hugging Face, with {CONFIG}, {TENSORS} and the files "
                "of its tokenizer."
            ) from error
        except ValueError as error:
            raise InputError(
                f"{path} is no JSON: {error}. Download it again."
            ) from error
        for name, expected in self.fixed.items():
            if found.get(name, expected) != expected:
                raise InputError(
                    f"{path}: {name} is {found[name]!r}, and this program computes "
                    f"{expected!r} only. Take another checkpoint, such as "
                    f"{self.examples}."
                )
        names = [field.name for field in dataclasses.fields(self.config)]
        return self.config(**{name: found[name] for name in names if name in found})

    def tensor_name(self, path: tuple[Any, ...]) -> str:
        """Returns the name in a checkpoint of the parameter at a path of the model."""
        names = WEIGHTS | dict(self.modules)
        return ".".join(str(names.get(part, part)) for part in path)

    def _turned(self, path: tuple[Any, ...], array: np.ndarray) -> np.ndarray:
        """Returns an array of a checkpoint in the layout of the model, or back."""
        return array.T if self._turns(path) else array

    def _turns(self, path: tuple[Any, ...]) -> bool:
        return self.transposed and path[-1] == "kernel"

    def _abstract(self, config: Any) -> tuple[Any, Any]:
        return nnx.split(nnx.eval_shape(lambda: self.model(config, nnx.Rngs(0))))

    def shapes(self, config: Any) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each tensor of a checkpoint, by name."""
        return {
            self.tensor_name(path): leaf.shape[:: -1 if self._turns(path) else 1]
            for path, leaf in nnx.to_flat_state(self._abstract(config)[1])
        }

    def load(self, folder: Path, mesh: Mesh) -> tuple[nnx.GraphDef, nnx.State, int]:
        """Reads a checkpoint, on every process.

        Args:
          folder: of the checkpoint.
          mesh: with the axes "data" and "fsdp".

        Returns:
          The model without its parameters; these: float32, global arrays; their
          checksum.

        Raises:
          InputError: a file is missing, unreadable, or does not match config.json; or
            the processes have read different values.
        """
        config = self.read_config(folder)
        arrays = self._read_tensors(folder, self.shapes(config))
        checksum = 0
        for name in sorted(arrays):
            checksum = zlib.crc32(np.ascontiguousarray(arrays[name]).data, checksum)
        check_same(checksum, f"the tensors in {folder}")
        graph, abstract = self._abstract(config)
        params = nnx.from_flat_state(
            (path, nnx.Param(place(mesh, self._turned(path, arrays[name]))))
            for path, _ in nnx.to_flat_state(abstract)
            for name in [self.tensor_name(path)]
        )
        return graph, params, checksum

    def _read_tensors(
        self, folder: Path, expected: Mapping[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray]:
        """Reads the tensors of a checkpoint with these shapes, as float32."""
        found = {
            name: np.zeros(shape, np.float32)
            for name, shape in expected.items()
            if re.fullmatch(self.added, name)
        }
        for name, path, array in self._tensors(folder):
            if name not in expected:
                raise InputError(
                    f"{path}: tensor {name!r} is no part of {self.title} with the "
                    f"sizes of {folder / CONFIG}. Take both files from one checkpoint."
                )
            if array.shape != expected[name]:
                raise InputError(
                    f"{path}: tensor {name!r} has the shape {list(array.shape)}, and "
                    f"the sizes in {folder / CONFIG} need {list(expected[name])}. Take "
                    "both files from one checkpoint."
                )
            found[name] = array.astype(np.float32)
        if missing := sorted(set(expected) - set(found)):
            raise InputError(
                f"{folder}: {len(missing)} of {len(expected)} tensors are missing, "
                f"such as {missing[0]!r}. Take all files from one checkpoint."
            )
        return found

    def _tensors(self, folder: Path) -> Iterator[tuple[str, Path, np.ndarray]]:
        """Yields name, file and value of each tensor but the unused ones."""
        for path in _tensor_files(folder):
            try:
                with safe_open(path, framework="np") as file:
                    for key in file.keys():  # noqa: SIM118 (no mapping)
                        name = key.removeprefix(self.prefix)
                        if not re.fullmatch(self.unused, name):
                            yield name, path, file.get_tensor(key)
            except (OSError, SafetensorError) as error:
                raise InputError(f"{path}: {error}. Download it again.") from error

    def save(self, folder: Path, params: nnx.State, source: Path) -> None:
        """Writes parameters as a checkpoint of Hugging Face.

        Args:
          folder: of the new checkpoint.
          params: global arrays of the model, of which this process has all parts.
          source: checkpoint with the config and the tokenizer, which are copied.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for path in source.iterdir():
            if path.suffix in {".json", ".txt"} and path.name != PARTS:
                shutil.copyfile(path, folder / path.name)
        tensors = {
            self.tensor_name(path): self._turned(path, whole(leaf[...]))
            for path, leaf in nnx.to_flat_state(params)
        }
        write_tensors(folder, tensors)

    def write_untrained(self, folder: Path, config: Any, deviation: float) -> None:
        """Writes config and tensors of a model, with matrices of this deviation."""
        fields = {**self.fixed, **dataclasses.asdict(config)}
        (folder / CONFIG).write_text(json.dumps(fields, indent=2) + "\n")
        generator = np.random.default_rng(0)
        tensors = {}
        for name, shape in sorted(self.shapes(config).items()):
            if re.fullmatch(self.added, name):
                continue
            if name.endswith(".bias"):
                tensors[name] = np.zeros(shape, np.float32)
            elif len(shape) == 1:
                tensors[name] = np.ones(shape, np.float32)
            else:
                tensors[name] = deviation * generator.standard_normal(shape, np.float32)
        write_tensors(folder, tensors)


def _tensor_files(folder: Path) -> list[Path]:
    if (folder / TENSORS).exists():
        return [folder / TENSORS]
    if (folder / PARTS).exists():
        names = json.loads((folder / PARTS).read_text())["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    raise InputError(
        f"{folder} has neither {TENSORS} nor {PARTS}. A pytorch_model.bin is no "
        "substitute: download or save the checkpoint as safetensors."
    )


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes model.safetensors."""
    # The writer takes the bytes of an array as they lie in memory.
    ordered = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    # Readers of Hugging Face require the entry "format".
    save_file(ordered, folder / TENSORS, metadata={"format": "pt"})


def sharding(mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
    """Returns the sharding of an array of this shape over the axis "fsdp".

    Its largest divisible dimension is divided over the devices of a process; vectors
    are whole on each. Over the axis "data" every array is whole.
    """
    size = mesh.shape["fsdp"]
    divisible = [i for i, n in enumerate(shape) if n % size == 0]
    spec: list[str | None] = [None] * len(shape)
    if divisible and len(shape) > 1:
        spec[max(divisible, key=lambda i: shape[i])] = "fsdp"
    return NamedSharding(mesh, P(*spec))


def place(mesh: Mesh, array: np.ndarray) -> jax.Array:
    """Makes a global array of one that every process has, see `sharding`."""
    place = sharding(mesh, array.shape)
    return jax.make_array_from_callback(array.shape, place, lambda at: array[at])


def check_same(checksum: int, subject: str) -> None:
    """Raises `InputError` unless all processes have the same checksum."""
    own = np.asarray([checksum], np.uint32)
    found = multihost_utils.process_allgather(own).reshape(-1)
    other = [rank for rank, its in enumerate(found) if its != found[0]]
    if other:
        raise InputError(
            f"{subject}: the content on rank {other[0]} is not that on rank 0. Give "
            "all hosts the same files, on a shared file system or as copies."
        )


def whole(array: Any) -> np.ndarray:
    """Returns an array, put together from the devices of this process."""
    value = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        value[shard.index] = shard.data
    return value
