"""GPT-2 in Flax NNX.

    graph, params, _ = FAMILY.load(folder, mesh)
    logits = nnx.merge(graph, params)(tokens)

nnx.Linear has the layout of the "Conv1D" of a checkpoint, [in, out], so no tensor is
transposed. The model computes the logits that `GPT2LMHeadModel` computes in evaluation;
training has no dropout.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from hugging_face import Family


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


FAMILY = Family(
    title="GPT-2",
    examples="gpt2, distilgpt2 or gpt2-medium",
    config=Config,
    model=Gpt2,
    # All sizes of GPT-2 have these values.
    fixed={
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
        "add_cross_attention": False,
    },
    prefix="transformer.",
    # Some checkpoints contain the embedding of tokens again, and constants.
    unused=r"lm_head\.weight|.*\.attn\.(masked_)?bias",
)
