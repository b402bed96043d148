"""BERT's encoder (Devlin et al. 2018, section 3; post-norm as in Vaswani et al. 2017)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.config import BertConfig
from contexture.models.encoding import Encoding
from contexture.models.layers.attention import Attention
from contexture.models.layers.blocks import FeedForward, Linear, Norm, scan_layers
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.layers.embeddings import BertEmbeddings

# Dropout's sites: the embeddings, then three in each layer.
_EMBEDDINGS, _ATTENTION, _AFTER_ATTENTION, _AFTER_FFN = 0, 1, 2, 3
_SITES_PER_LAYER = 3


def kernel_init(config: BertConfig) -> Any:
    """Normal, cut at two deviations and not rescaled, as TensorFlow's truncated_normal."""
    return nn.initializers.truncated_normal(config.init_std)


def sizes(config: BertConfig, classes: int = 2) -> dict[str, int]:
    """The letters of a configuration: {"V": 30522, "D": 768, …}; `_` is the hidden width again, C a head's classes."""
    return {
        "V": config.vocab,
        "L": config.length,
        "T": config.segments,
        "N": config.layers,
        "D": config.hidden,
        "_": config.hidden,
        "H": config.heads,
        "K": config.hidden // config.heads,
        "F": config.ffn,
        "C": classes,
    }


FIELDS = {"tokens": "i32 BL", "segments": "i32 BL", "mask": "i32 BL"}
"""What the backbone reads of a batch."""


def training_flops(config: BertConfig, size: dict[str, int]) -> float:
    """FLOPs of one step on B lines of L tokens with P slots, three times the forward's products, recomputation not
    counted: per token 8D² + 4DF a layer and 4LD for attention, per slot 2D² + 2DV (none without P), per line 2D²."""
    D, F, N, V, L = config.hidden, config.ffn, config.layers, config.vocab, size["L"]
    token = N * (8 * D * D + 4 * D * F + 4 * L * D)
    return 3.0 * size["B"] * size.get("A", 1) * (L * token + size.get("P", 0) * (2 * D * D + 2 * D * V) + 2 * D * D)


class Block(nn.Module):
    """norm(x + attention(x)), then norm(x + ffn(x)); dropout on the attention weights and on both sums' new part."""

    config: BertConfig

    def setup(self) -> None:
        c, size, dtype = self.config, sizes(self.config), jnp.dtype(self.config.dtype)
        self.attention = Attention(size, c.attention_dropout, kernel_init(c), dtype)
        self.attention_norm = Norm(c.eps, dtype)
        self.ffn = FeedForward(size, c.gelu, kernel_init(c), dtype)
        self.ffn_norm = Norm(c.eps, dtype)

    def __call__(
        self, x_BLD: jax.Array, layer: jax.Array, bias_BHLM: jax.Array, dropout_key: DropoutKey | None
    ) -> jax.Array:
        rate, site = self.config.dropout, layer * _SITES_PER_LAYER
        new_BLD = self.attention(x_BLD, bias_BHLM, dropout_key, site + _ATTENTION)
        x_BLD = self.attention_norm(x_BLD + dropout(new_BLD, rate, dropout_key, site + _AFTER_ATTENTION))
        new_BLD = self.ffn(x_BLD)
        return self.ffn_norm(x_BLD + dropout(new_BLD, rate, dropout_key, site + _AFTER_FFN))


class Bert(nn.Module):
    """tokens, segments, mask (all i32 BL) → Encoding, pooled by tanh(dense([CLS])).

    The mask is over keys only: -10000 is added to a padded key's logit, and padded queries attend all the same,
    as in the original. positions (i32 BL) may say where each token stands; packs are not read by BERT.
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None, *, states: bool = False
    ) -> Encoding:
        c, size, dtype = self.config, sizes(self.config), jnp.dtype(self.config.dtype)
        embeddings = BertEmbeddings(size, c.dropout, c.eps, kernel_init(c), dtype, name="embeddings")
        x_BLD, table_VD = embeddings(
            batch["tokens"], batch["segments"], batch.get("positions"), dropout_key, _EMBEDDINGS
        )
        mask_BL = batch["mask"]
        bias_BHLM = (1.0 - mask_BL.astype(jnp.float32))[:, None, None, :] * -10000.0
        out_BLD, layers = scan_layers(
            Block, (c,), x_BLD, bias_BHLM, dropout_key, layers=c.layers, unroll=c.unroll, remat=c.remat, states=states
        )
        pooled_BD = jnp.tanh(Linear("BD,D_->B_", size, kernel_init(c), dtype, name="pooler")(out_BLD[:, 0]))
        return Encoding(out_BLD, mask_BL, pooled_BD, (x_BLD, *layers) if states else (), table_VD)
