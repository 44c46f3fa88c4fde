"""The encoder of BERT in Flax NNX, with a classifier.

    graph, params, _ = FAMILY.load(folder, mesh)
    logits = nnx.merge(graph, params)(tokens)

The outputs of the layers are those that `BertModel` computes in evaluation; training
has no dropout. The mean over the tokens of a row enters the classifier, as in
sentence-transformers. A checkpoint without "classifier.weight" and "classifier.bias"
gets zeros in their place: all classes are equally probable.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from hugging_face import Family

# The lexicographer files of WordNet.
CLASSES = 45


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a model; the names are those of config.json.

    Attributes:
      vocab_size: number of tokens.
      hidden_size: width.
      num_hidden_layers: number of layers.
      num_attention_heads: heads of attention in each.
      intermediate_size: width within the MLP.
      max_position_embeddings: longest sequence.
      type_vocab_size: types of sequences; the model gets the first one.
      layer_norm_eps: added to the variance in a layer norm.
      pad_token_id: token behind the end of a short sequence.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0


class Layer(nnx.Module):
    """Attention and an MLP, each added to its input, and a layer norm of the sum."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.query = nnx.Linear(width, width, rngs=rngs)
        self.key = nnx.Linear(width, width, rngs=rngs)
        self.value = nnx.Linear(width, width, rngs=rngs)
        self.mixed = nnx.Linear(width, width, rngs=rngs)
        self.mixed_norm = _layer_norm(config, rngs)
        self.wide = nnx.Linear(width, inner, rngs=rngs)
        self.narrow = nnx.Linear(inner, width, rngs=rngs)
        self.narrow_norm = _layer_norm(config, rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps float32 [batch, length, width] to the same shape."""
        by_head = (*x.shape[:-1], self.heads, -1)
        q, k, v = (
            layer(x).reshape(by_head) for layer in (self.query, self.key, self.value)
        )
        mixed = nnx.dot_product_attention(q, k, v, mask=mask[:, None, None])
        x = self.mixed_norm(x + self.mixed(mixed.reshape(x.shape)))
        inner = jax.nn.gelu(self.wide(x), approximate=False)
        return self.narrow_norm(x + self.narrow(inner))


class Encoder(nnx.Module):
    """The encoder and the classifier."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        width, self.pad = config.hidden_size, config.pad_token_id
        self.words = nnx.Embed(config.vocab_size, width, rngs=rngs)
        self.positions = nnx.Embed(config.max_position_embeddings, width, rngs=rngs)
        self.types = nnx.Embed(config.type_vocab_size, width, rngs=rngs)
        self.norm = _layer_norm(config, rngs)
        number = config.num_hidden_layers
        self.layers = nnx.List([Layer(config, rngs) for _ in range(number)])
        self.classifier = nnx.Linear(width, CLASSES, rngs=rngs)

    def encode(self, tokens: jax.Array) -> jax.Array:
        """Maps int32 [batch, length] to float32 [batch, length, width]."""
        mask = tokens != self.pad
        x = self.words(tokens) + self.positions(jnp.arange(tokens.shape[-1]))
        x = self.norm(x + self.types(jnp.zeros_like(tokens)))
        for layer in self.layers:
            x = layer(x, mask)
        return x

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps int32 [batch, length] to logits, float32 [batch, CLASSES]."""
        mask = (tokens != self.pad)[..., None]
        return self.classifier(self.encode(tokens).mean(-2, where=mask))


def _layer_norm(config: Config, rngs: nnx.Rngs) -> nnx.LayerNorm:
    # The fast variance, E[x^2] - E[x]^2, loses digits.
    return nnx.LayerNorm(
        config.hidden_size,
        epsilon=config.layer_norm_eps,
        use_fast_variance=False,
        rngs=rngs,
    )


def class_loss(model: Encoder, rows: jax.Array) -> jax.Array:
    """Returns the mean loss, for int32 [batch, 1 + length]: class, tokens."""
    losses = optax.softmax_cross_entropy_with_integer_labels
    return losses(model(rows[:, 1:]), rows[:, 0]).mean()


FAMILY = Family(
    title="BERT",
    examples="all-MiniLM-L6-v2 or bert-base-uncased",
    config=Config,
    model=Encoder,
    fixed={
        "model_type": "bert",
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "is_decoder": False,
    },
    prefix="bert.",
    # The classifier reads the mean, not the pooler.
    unused=r"pooler\..*|cls\..*|embeddings\.position_ids",
    added=r"classifier\..*",
    modules={
        "words": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "types": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
        "layers": "encoder.layer",
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "mixed": "attention.output.dense",
        "mixed_norm": "attention.output.LayerNorm",
        "wide": "intermediate.dense",
        "narrow": "output.dense",
        "narrow_norm": "output.LayerNorm",
    },
    transposed=True,
)
