"""Options, inputs and optimizer that the programs for GPT-2 share."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpt2_model
import gpt2_text
import gpt2_tiny
import jax
import optax
from gpt2_model import InputError
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh

import jax_optireduce

# Options that change the values of a training, beside its inputs and the highest rate.
SETTINGS = ("steps", "batch", "length", "warmup", "weight_decay", "clip", "seed")

# Highest learning rates. Source: the first is that of Hugging Face's own program; the
# other one is chosen for a tiny model that begins untrained.
RATE, TINY_RATE = 5e-5, 5e-3


def add_arguments(parser: argparse.ArgumentParser, output: str) -> None:
    """Adds the options that the programs share; `output` is a folder."""
    add = parser.add_argument
    add("--checkpoint", type=Path, help="folder of the model (default: a tiny one)")
    add("--text", type=Path, help="a text file, or JSON lines (.jsonl)")
    add("--field", default="text", help="of each JSON line (default text)")
    add("--output", type=Path, default=Path(output), help=f"default {output}")
    add("--steps", type=int, default=200, help="updates (default 200)")
    add("--batch", type=int, default=32, help="sequences in an update (default 32)")
    add("--length", type=int, default=512, help="tokens in a sequence (default 512)")
    add("--rate", type=float, help=f"highest learning rate (default {RATE:g})")
    add("--warmup", type=int, help="steps of warm-up (default: a tenth)")
    add("--weight-decay", type=float, default=0.01, help="of matrices (default 0.01)")
    add(
        "--clip", type=float, default=1.0, help="largest norm of a gradient (default 1)"
    )
    add("--seed", type=int, default=0, help="of the order of the text (default 0)")
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


def inputs(args: argparse.Namespace) -> tuple[Path, Path]:
    """Returns checkpoint and text, and makes tiny ones if none are given.

    It also sets `args.rate`, if that is not given.

    Raises:
      InputError: one of checkpoint and text is given without the other.
    """
    if (args.checkpoint is None) != (args.text is None):
        raise InputError("give both --checkpoint and --text, or neither")
    if args.rate is None:
        args.rate = TINY_RATE if args.checkpoint is None else RATE
    if args.checkpoint is not None:
        return args.checkpoint, args.text
    tiny = args.output / "tiny"
    if jax.process_index() == 0:
        gpt2_tiny.make(tiny)
    multihost_utils.sync_global_devices("the tiny checkpoint")
    return tiny, tiny / gpt2_tiny.TEXT


def read_text(args: argparse.Namespace, folder: Path, path: Path) -> gpt2_text.Blocks:
    """Reads the text as blocks.

    Args:
      args: the options of the program.
      folder: of the checkpoint.
      path: of the text.

    Raises:
      InputError: it is unreadable or too short, or differs between the hosts; or the
        batch is not divisible.
    """
    config = gpt2_model.read_config(folder)
    blocks = gpt2_text.Blocks.read(
        path,
        gpt2_text.read_tokenizer(folder),
        length=min(args.length, config.n_positions),
        vocabulary=config.vocab_size,
        field=args.field,
    )
    parts = jax.device_count() * args.accumulate
    if args.batch < 1 or args.batch % parts:
        raise InputError(
            f"--batch {args.batch} is not divisible by {jax.device_count()} devices x "
            f"{args.accumulate} parts = {parts}: take a multiple of {parts}."
        )
    if args.batch > len(blocks.tokens):
        raise InputError(
            f"{path} has {len(blocks.tokens)} sequences of {blocks.length} tokens, "
            f"fewer than --batch {args.batch}: give more text, or a smaller --batch or "
            "--length."
        )
    gpt2_model.check_same(blocks.checksum, f"the tokens of {path}")
    return blocks


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
