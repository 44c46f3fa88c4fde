"""GPT-2 in Flax NNX, read from and written to checkpoints of Hugging Face.

    graph, params, _ = load(folder, mesh)
    logits = nnx.merge(graph, params)(tokens)

A checkpoint is a folder with config.json and model.safetensors, or the parts that
model.safetensors.index.json lists. The names of the modules are those of the tensors,
and nnx.Linear has the layout of their "Conv1D", [in, out], so no tensor is transposed.
The model computes the logits that `GPT2LMHeadModel` computes in evaluation; training
has no dropout.
"""

import dataclasses
import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
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

# Fields of config.json that change the computation, and the value of GPT-2 and all of
# its sizes, which is that of a missing field.
FIXED = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "add_cross_attention": False,
}

# Names of the parameters in NNX, and in a checkpoint.
WEIGHTS = {"kernel": "weight", "embedding": "weight", "scale": "weight", "bias": "bias"}


class InputError(Exception):
    """A file or an option of the user is unusable, for the reason in the message."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a model; the names are those of config.json.

    Attributes:
      vocab_size: number of tokens.
      n_positions: longest sequence.
      n_embd: width.
      n_layer: number of blocks.
      n_head: heads of attention in each.
      n_inner: width within the MLP; None is four times `n_embd`.
      layer_norm_epsilon: added to the variance in a layer norm.
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    layer_norm_epsilon: float = 1e-5


class Attention(nnx.Module):
    """Causal attention of several heads."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        width, self.heads = config.n_embd, config.n_head
        self.c_attn = nnx.Linear(width, 3 * width, rngs=rngs)
        self.c_proj = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 [batch, length, width] to the same shape."""
        by_head = (*x.shape[:-1], self.heads, -1)
        q, k, v = (a.reshape(by_head) for a in jnp.split(self.c_attn(x), 3, -1))
        mixed = nnx.dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.reshape(x.shape))


class Mlp(nnx.Module):
    """Two layers, with the approximation of GELU by tanh ("gelu_new") in between."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = nnx.Linear(config.n_embd, inner, rngs=rngs)
        self.c_proj = nnx.Linear(inner, config.n_embd, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 [batch, length, width] to the same shape."""
        return self.c_proj(jax.nn.gelu(self.c_fc(x), approximate=True))


class Block(nnx.Module):
    """Attention and an MLP, each after its layer norm and added to its input."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.ln_1 = _layer_norm(config, rngs)
        self.attn = Attention(config, rngs)
        self.ln_2 = _layer_norm(config, rngs)
        self.mlp = Mlp(config, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps float32 [batch, length, width] to the same shape."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nnx.Module):
    """The language model; its embedding of tokens is also its last layer."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.wte = nnx.Embed(config.vocab_size, config.n_embd, rngs=rngs)
        self.wpe = nnx.Embed(config.n_positions, config.n_embd, rngs=rngs)
        self.h = nnx.List([Block(config, rngs) for _ in range(config.n_layer)])
        self.ln_f = _layer_norm(config, rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps int32 [batch, length] to logits, float32 [batch, length, vocab_size]."""
        x = self.wte(tokens) + self.wpe(jnp.arange(tokens.shape[-1]))
        for block in self.h:
            x = block(x)
        return self.wte.attend(self.ln_f(x))


def _layer_norm(config: Config, rngs: nnx.Rngs) -> nnx.LayerNorm:
    # The fast variance, E[x^2] - E[x]^2, loses digits.
    return nnx.LayerNorm(
        config.n_embd,
        epsilon=config.layer_norm_epsilon,
        use_fast_variance=False,
        rngs=rngs,
    )


def next_token_loss(model: Gpt2, tokens: jax.Array) -> jax.Array:
    """Returns the mean loss of the next token, for int32 [batch, length + 1]."""
    losses = optax.softmax_cross_entropy_with_integer_labels
    return losses(model(tokens[:, :-1]), tokens[:, 1:]).mean()


def read_config(folder: Path) -> Config:
    """Reads the sizes from config.json.

    Raises:
      InputError: the file is missing, unreadable, or of another model.
    """
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}. Give the folder of a GPT-2 checkpoint of "
            f"Hugging Face, with {CONFIG}, {TENSORS} and the files of its tokenizer."
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}. Download it again.") from error
    for name, expected in FIXED.items():
        if found.get(name, expected) != expected:
            raise InputError(
                f"{path}: {name} is {found[name]!r}, and this program computes "
                f"{expected!r} only. Take another checkpoint, such as gpt2, distilgpt2 "
                "or gpt2-medium."
            )
    names = [field.name for field in dataclasses.fields(Config)]
    return Config(**{name: found[name] for name in names if name in found})


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor of a checkpoint, by name."""
    flat = nnx.to_flat_state(_abstract(config)[1])
    return {tensor_name(path): leaf.shape for path, leaf in flat}


def _abstract(config: Config) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: Gpt2(config, nnx.Rngs(0))))


def tensor_name(path: tuple[Any, ...]) -> str:
    """Returns the name in a checkpoint of the parameter at a path of the model."""
    return ".".join(map(str, (*path[:-1], WEIGHTS[path[-1]])))


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


def load(folder: Path, mesh: Mesh) -> tuple[nnx.GraphDef, nnx.State, int]:
    """Reads a checkpoint, on every process.

    Args:
      folder: of the checkpoint.
      mesh: with the axes "data" and "fsdp".

    Returns:
      The model without its parameters; these: float32, global arrays; their checksum.

    Raises:
      InputError: a file is missing, unreadable, or does not match config.json; or the
        processes have read different values.
    """
    graph, abstract = _abstract(read_config(folder))
    flat = [(path, leaf.shape) for path, leaf in nnx.to_flat_state(abstract)]
    arrays = read_tensors(folder, {tensor_name(path): shape for path, shape in flat})
    checksum = 0
    for name in sorted(arrays):
        checksum = zlib.crc32(np.ascontiguousarray(arrays[name]).data, checksum)
    check_same(checksum, f"the tensors in {folder}")
    params = nnx.from_flat_state(
        (path, nnx.Param(place(mesh, arrays[tensor_name(path)]))) for path, _ in flat
    )
    return graph, params, checksum


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


def read_tensors(
    folder: Path, expected: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Reads the tensors of a checkpoint, as float32.

    Args:
      folder: of the checkpoint.
      expected: their shapes, by name.

    Raises:
      InputError: see `load`.
    """
    found = {}
    for name, path, array in _tensors(folder):
        if name == "lm_head.weight":
            continue  # The embedding of tokens again.
        if name not in expected:
            raise InputError(
                f"{path}: tensor {name!r} is no part of GPT-2 with the sizes of "
                f"{folder / CONFIG}. Take both files from one checkpoint."
            )
        if array.shape != expected[name]:
            raise InputError(
                f"{path}: tensor {name!r} has the shape {list(array.shape)}, and the "
                f"sizes in {folder / CONFIG} need {list(expected[name])}. Take both "
                "files from one checkpoint."
            )
        found[name] = array.astype(np.float32)
    if missing := sorted(set(expected) - set(found)):
        raise InputError(
            f"{folder}: {len(missing)} of {len(expected)} tensors are missing, such as "
            f"{missing[0]!r}. Take all files from one checkpoint."
        )
    return found


def _tensors(folder: Path) -> Iterator[tuple[str, Path, np.ndarray]]:
    """Yields name, file and value of each tensor, without the masks of attention."""
    for path in _tensor_files(folder):
        try:
            with safe_open(path, framework="np") as file:
                for key in file.keys():  # noqa: SIM118 (no mapping)
                    name = key.removeprefix("transformer.")
                    # Constants, which some checkpoints contain.
                    if not name.endswith((".attn.bias", ".attn.masked_bias")):
                        yield name, path, file.get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: {error}. Download it again.") from error


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


def save(folder: Path, params: nnx.State, source: Path) -> None:
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
    flat = nnx.to_flat_state(params)
    write_tensors(folder, {tensor_name(path): whole(leaf) for path, leaf in flat})


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes model.safetensors."""
    # Readers of Hugging Face require the entry "format".
    save_file(dict(tensors), folder / TENSORS, metadata={"format": "pt"})


def whole(variable: Any) -> np.ndarray:
    """Returns a parameter, put together from the devices of this process."""
    array: Any = variable[...]
    value = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        value[shard.index] = shard.data
    return value
