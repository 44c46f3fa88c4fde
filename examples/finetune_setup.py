"""Options, inputs and optimizer that the programs for fine-tuning share."""

import argparse
import dataclasses
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from hugging_face import InputError, check_same
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh

import jax_optireduce

# Options that change the values of a training, beside its inputs and the highest rate.
SETTINGS = ("steps", "batch", "length", "warmup", "weight_decay", "clip", "seed")

# Highest learning rates. Source: the first is that of Hugging Face's own program; the
# other one is chosen for a tiny model that begins untrained.
RATE, TINY_RATE = 5e-5, 5e-3


@dataclasses.dataclass(frozen=True)
class Rows:
    """The data of a training: rows, from which each step takes its batch.

    The order depends on the seed and the step alone, so a resumed training continues
    it exactly.

    Attributes:
      tokens: int32 [rows, length + 1]; the column that is no input of the model is the
        first or the last.
    """

    tokens: np.ndarray

    @property
    def length(self) -> int:
        """Tokens of a row that the model reads."""
        return self.tokens.shape[1] - 1

    @property
    def checksum(self) -> int:
        """Checksum of all tokens."""
        return zlib.crc32(np.ascontiguousarray(self.tokens).data)

    def of_step(self, step: int, *, batch: int, seed: int) -> np.ndarray:
        """Returns the rows of a step of all ranks: int32 [batch, length + 1].

        Every epoch has an order of its own, and leaves out a last, incomplete batch.
        """
        epoch, place = divmod(step, len(self.tokens) // batch)
        order = np.random.default_rng((seed, epoch)).permutation(len(self.tokens))
        return self.tokens[order[place * batch :][:batch]]


def add_arguments(parser: argparse.ArgumentParser, output: str, length: int) -> None:
    """Adds the options that the programs share.

    Args:
      parser: of the program, which adds the option for its data.
      output: the default folder.
      length: the default of --length.
    """
    add = parser.add_argument
    add("--checkpoint", type=Path, help="folder of the model (default: a tiny one)")
    add("--output", type=Path, default=Path(output), help=f"default {output}")
    add("--steps", type=int, default=200, help="updates (default 200)")
    add("--batch", type=int, default=32, help="sequences in an update (default 32)")
    add("--length", type=int, default=length, help=f"tokens in each (default {length})")
    add("--rate", type=float, help=f"highest learning rate (default {RATE:g})")
    add("--warmup", type=int, help="steps of warm-up (default: a tenth)")
    add("--weight-decay", type=float, default=0.01, help="of matrices (default 0.01)")
    add(
        "--clip", type=float, default=1.0, help="largest norm of a gradient (default 1)"
    )
    add("--seed", type=int, default=0, help="of the order of the data (default 0)")
    add("--accumulate", type=int, default=1, help="parts of a batch (default 1)")
    add("--resync-every", type=int, default=100, help="steps (default 100)")
    add("--save-every", type=int, default=100, help="steps (default 100)")
    add("--stop-after", type=int, help="save and end after this step; --resume goes on")
    add("--resume", action="store_true", help="continue the training in --output")
    add("--mode", help="exact, agreed, bounded or lossy (default: bounded)")


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the common options that a resumed training must share."""
    return {name: getattr(args, name) for name in (*SETTINGS, "rate")}


def run(args: argparse.Namespace, train: Callable[[argparse.Namespace], None]) -> None:
    """Runs `train` in a session, in which `args.mode` is the mode of the gradients."""
    options = {} if args.mode is None else {"mode": args.mode}
    with jax_optireduce.init(**options) as communicator:
        args.mode = communicator.options.mode or "bounded"
        try:
            train(args)
        except InputError as error:
            raise SystemExit(f"error: {error}") from None


def make_mesh() -> Mesh:
    """Makes the mesh of the program: "data" between processes, "fsdp" within each."""
    mesh = jax.make_mesh(
        (jax.process_count(), jax.local_device_count()),
        ("data", "fsdp"),
        axis_types=(AxisType.Auto, AxisType.Auto),
    )
    jax.set_mesh(mesh)
    return mesh


def inputs(
    args: argparse.Namespace, option: str, make: Callable[[Path], None], data: str
) -> tuple[Path, Path]:
    """Returns checkpoint and data, and makes tiny ones if none are given.

    It also sets `args.rate`, if that is not given.

    Args:
      args: the options of the program.
      option: the name of that with the data.
      make: makes a tiny checkpoint with its data in a folder.
      data: the name of this data in the folder.

    Raises:
      InputError: one of checkpoint and data is given without the other.
    """
    given = getattr(args, option)
    if (args.checkpoint is None) != (given is None):
        raise InputError(f"give both --checkpoint and --{option}, or neither")
    if args.rate is None:
        args.rate = TINY_RATE if given is None else RATE
    if given is not None:
        return args.checkpoint, given
    tiny = args.output / "tiny"
    if jax.process_index() == 0:
        make(tiny)
    multihost_utils.sync_global_devices("the tiny checkpoint")
    return tiny, tiny / data


def check(args: argparse.Namespace, rows: Rows, path: Path) -> None:
    """Checks the data of a training.

    Args:
      args: the options of the program.
      rows: the data.
      path: its file or folder, for errors.

    Raises:
      InputError: it is too short, or differs between the hosts; or the batch is not
        divisible.
    """
    parts = jax.device_count() * args.accumulate
    if args.batch < 1 or args.batch % parts:
        raise InputError(
            f"--batch {args.batch} is not divisible by {jax.device_count()} devices x "
            f"{args.accumulate} parts = {parts}: take a multiple of {parts}."
        )
    if args.batch > len(rows.tokens):
        raise InputError(
            f"{path} has {len(rows.tokens)} sequences of {rows.length} tokens, "
            f"fewer than --batch {args.batch}: give more text, or a smaller --batch or "
            "--length."
        )
    check_same(rows.checksum, f"the tokens of {path}")


def make_optimizer(args: argparse.Namespace) -> Any:
    """Returns AdamW with a clipped gradient, warm-up and cosine decay to zero."""
    warmup = args.steps // 10 if args.warmup is None else args.warmup
    schedule = optax.warmup_cosine_decay_schedule(0.0, args.rate, warmup, args.steps)
    return optax.chain(
        optax.clip_by_global_norm(args.clip),
        # Biases and layer norms do not decay.
        optax.adamw(
            schedule,
            weight_decay=args.weight_decay,
            mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
        ),
    )
