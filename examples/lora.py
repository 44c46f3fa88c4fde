"""Fine-tunes GPT-2 by adapters of low rank (LoRA), data-parallel over the processes.

    python -m jax_optireduce launch -n 4 examples/lora.py \
        --checkpoint gpt2/ --text book.txt

Each adapted matrix W [in, out] becomes W + A B, with A [in, rank] and B [rank, out]. W
stays as it is, so the gradients of a step are those of A and B alone: one small bucket,
whose call takes a few round trips rather than the time of its bytes. The output is a
checkpoint of Hugging Face with the sums W + A B, and the plot of the training.

Inputs, options and checkpoints are those of finetune_gpt2.py; a checkpoint has the
adapters, without W. Source: Hu et al., "LoRA: Low-Rank
Adaptation of Large Language Models", ICLR 2022, section 4.
"""

import argparse
from typing import Any

import finetune_setup
import finetune_tiny
import finetune_train
import gpt2_model
import gpt2_text
import jax
import numpy as np
from flax import nnx
from hugging_face import place
from jax.sharding import Mesh

# Linear layers of a block that can have an adapter: of the attention, and of the MLP.
TARGETS = ("c_attn", "c_proj", "c_fc")


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    gpt2_text.add_arguments(parser, output="adapted")
    add = parser.add_argument
    add("--rank", type=int, default=8, help="of an adapter (default 8)")
    add(
        *("--targets", "-t"),
        nargs="+",
        choices=TARGETS,
        default=["c_attn"],
        help="layers with an adapter (default c_attn)",
    )
    return parser.parse_args()


def adapted_layers(model: gpt2_model.Gpt2, targets: list[str]) -> list[tuple[Any, str]]:
    """Returns module and attribute of each layer with an adapter."""
    return [
        (module, name)
        for block in model.h
        for module in (block.attn, block.mlp)
        for name in targets
        if hasattr(module, name)
    ]


def add_adapters(
    model: gpt2_model.Gpt2, args: argparse.Namespace, mesh: Mesh
) -> tuple[nnx.GraphDef, Any, Any]:
    """Returns the model with adapters: graph, adapters, and all other parameters."""
    rngs = nnx.Rngs(args.seed)
    for module, name in adapted_layers(model, args.targets):
        layer = getattr(module, name)
        sizes = layer.in_features, args.rank, layer.out_features
        setattr(module, name, nnx.LoRA(*sizes, base_module=layer, rngs=rngs))
    graph, adapters, base = nnx.split(model, nnx.LoRAParam, ...)
    adapters = jax.tree.map(lambda x: place(mesh, np.asarray(x)), adapters)
    return graph, adapters, base


def merged(model: gpt2_model.Gpt2, targets: list[str]) -> nnx.State:
    """Returns the parameters of the model without adapters, W + A B in their place."""
    for module, name in adapted_layers(model, targets):
        lora = getattr(module, name)
        layer = lora.base_module
        layer.kernel[...] += lora.lora_a[...] @ lora.lora_b[...]
        setattr(module, name, layer)
    return nnx.state(model)


def train(args: argparse.Namespace) -> None:
    """Trains the adapters, and writes checkpoints, the model and the plot."""
    mesh = finetune_setup.make_mesh()
    make, data = finetune_tiny.make_gpt2, finetune_tiny.TEXT
    folder, text = finetune_setup.inputs(args, "text", make, data)
    rows = gpt2_text.read_text(args, folder, text)
    graph, params, checksum = gpt2_model.FAMILY.load(folder, mesh)
    graph, adapters, base = add_adapters(nnx.merge(graph, params), args, mesh)
    own, all_ = (sum(x.size for x in jax.tree.leaves(t)) for t in (adapters, base))
    if jax.process_index() == 0:
        print(f"adapters: {own:,} parameters beside {all_:,}", flush=True)

    def loss_fn(adapters: Any, base: Any, tokens: jax.Array) -> jax.Array:
        return gpt2_model.next_token_loss(nnx.merge(graph, adapters, base), tokens)

    adapters = finetune_train.train(
        args,
        rows,
        loss_fn,
        adapters,
        constants=base,
        settings={"checkpoint": checksum, "rank": args.rank, "targets": args.targets},
    )
    params = merged(nnx.merge(graph, adapters, base), args.targets)
    if jax.process_index() == 0:
        gpt2_model.FAMILY.save(args.output / "model", params, folder)
        print(f"model: {args.output / 'model'}", flush=True)


if __name__ == "__main__":
    finetune_setup.run(parse_arguments(), train)
