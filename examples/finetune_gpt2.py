"""Fine-tunes GPT-2 on a text, data-parallel over the processes.

    python -m jax_optireduce launch -n 4 examples/finetune_gpt2.py \
        --checkpoint gpt2/ --text book.txt

Starts from a checkpoint of Hugging Face (config.json, model.safetensors and the files
of the tokenizer) and writes another one, with the plot of the training, into --output.
Without --checkpoint and --text it makes a tiny, untrained model and a small text there,
in the same formats. AdamW with warm-up, cosine decay and a clipped gradient.

The gradients cross the network in one call per update (`average_gradients`), also with
--accumulate. With JAX_OPTIREDUCE_BACKEND=xla the same program runs on JAX's own
collectives. The devices of a process share the parameters (axis "fsdp").

--resume continues after the newest Orbax checkpoint in --output: in mode `exact` with
the bits of a training that was never interrupted. docs/finetuning.md explains the use
on a cluster.
"""

import argparse
from typing import Any

import finetune_setup
import finetune_tiny
import finetune_train
import gpt2_model
import gpt2_text
import jax
from flax import nnx


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    gpt2_text.add_arguments(parser, output="finetuned")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    """Trains, and writes checkpoints, the model and the plot."""
    mesh = finetune_setup.make_mesh()
    make, data = finetune_tiny.make_gpt2, finetune_tiny.TEXT
    folder, text = finetune_setup.inputs(args, "text", make, data)
    rows = gpt2_text.read_text(args, folder, text)
    graph, params, _ = gpt2_model.FAMILY.load(folder, mesh)

    def loss_fn(params: Any, _: None, tokens: jax.Array) -> jax.Array:
        return gpt2_model.next_token_loss(nnx.merge(graph, params), tokens)

    params = finetune_train.train(args, rows, loss_fn, params)
    if jax.process_index() == 0:
        gpt2_model.FAMILY.save(args.output / "model", params, folder)
        print(f"model: {args.output / 'model'}", flush=True)


if __name__ == "__main__":
    finetune_setup.run(parse_arguments(), train)
