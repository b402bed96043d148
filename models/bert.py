"""BERT's encoder (Devlin et al. 2018, section 3; post-norm as in Vaswani et al. 2017)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.config import BertConfig
from contexture.models.encoding import Encoding
from contexture.models.layers.attention.choice import choose
from contexture.models.layers.attention.mask import PADDED, AttentionMask
from contexture.models.layers.attention.module import Attention, AttentionMap
from contexture.models.layers.blocks import FeedForward, Init, Linear, Norm, scan_layers
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.layers.embeddings import BertEmbeddings
from contexture.models.sharding import platform

# Dropout's sites: 0 for the embeddings, then layer · 3 + 1, 2, 3.
_EMBEDDINGS, _ATTENTION, _AFTER_ATTENTION, _AFTER_FFN = 0, 1, 2, 3
_SITES_PER_LAYER = 3


def kernel_init(config: BertConfig) -> Init:
    """Normal, truncated at two standard deviations and not rescaled, as TensorFlow's truncated_normal."""
    return nn.initializers.truncated_normal(config.init_std)


def sizes(config: BertConfig, classes: int = 2) -> dict[str, int]:
    """Returns a configuration's sizes by letter: {"V": 30522, "D": 768, …}; `_` is D again, C a head's classes."""
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


def training_flops(config: BertConfig, size: dict[str, int]) -> float:
    """3·B·(L·N·(8D² + 4DF + 4LD) + P·(2D² + 2DV) + 2D²): FLOPs of one step on B sequences with P masked positions.

    8D² are attention's four projections, 4DF the feed-forward, 4LD both products of attention; P's part is the masked
    LM's head, the last 2D² the pooler. The backward pass costs twice the forward. Recomputation is not counted.
    """
    D, F, N, V, L = config.hidden, config.ffn, config.layers, config.vocab, size["L"]
    token = N * (8 * D * D + 4 * D * F + 4 * L * D)
    # The alternatives of a choice (A) are sequences of their own.
    return 3.0 * size["B"] * size.get("A", 1) * (L * token + size.get("P", 0) * (2 * D * D + 2 * D * V) + 2 * D * D)


class Block(nn.Module):
    """x = norm(x + dropout(attention(x))), then x = norm(x + dropout(ffn(x))); dropout on the attention weights too."""

    config: BertConfig

    def setup(self) -> None:
        c, size, dtype = self.config, sizes(self.config), jnp.dtype(self.config.dtype)
        init, kind = kernel_init(c), c.quantization
        # The output projection is initialised like every other kernel
        # (out_init None), as in modeling.py: no scale by depth.
        self.attention = Attention(size, c.attention_dropout, init, dtype, None, True, c.remat == "attention", kind)
        self.attention_norm = Norm(c.eps, dtype)
        self.ffn = FeedForward(size, c.gelu, init, dtype, quantization=kind)
        self.ffn_norm = Norm(c.eps, dtype)

    def __call__(
        self, x_BLD: jax.Array, layer: jax.Array, mask: AttentionMask | jax.Array, dropout_key: DropoutKey | None
    ) -> jax.Array:
        # In a scan the layer's number is an array, and so is the site: one program draws every layer's own masks.
        rate, site = self.config.dropout, layer * _SITES_PER_LAYER
        new_BLD = self.attention(x_BLD, mask, dropout_key, site + _ATTENTION)
        x_BLD = self.attention_norm(x_BLD + dropout(new_BLD, rate, dropout_key, site + _AFTER_ATTENTION))
        new_BLD = self.ffn(x_BLD)
        return self.ffn_norm(x_BLD + dropout(new_BLD, rate, dropout_key, site + _AFTER_FFN))

    def maps(self, x_BLD: jax.Array, layer: jax.Array, mask_BL: jax.Array) -> AttentionMap:
        """Returns the attention of this layer, whose input is x_BLD (`Attention.maps`)."""
        return self.attention.maps(x_BLD, padding_bias(mask_BL))


def padding_bias(mask_BL: jax.Array) -> jax.Array:
    """Returns the attention bias of padded keys, B11M."""
    # The original's adder: 0 for tokens, PADDED for padding, in float32 like the logits that it is added to.
    return (1.0 - mask_BL.astype(jnp.float32))[:, None, None, :] * PADDED


class Bert(nn.Module):
    """tokens, segments, mask (all i32 BL) → Encoding, pooled as tanh(dense([CLS])).

    positions (i32 BL) are each token's place in its text, 0, 1, … unless the batch holds them. BERT does not read
    packs.
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None, *, states: bool = False
    ) -> Encoding:
        c, size, dtype = self.config, sizes(self.config), jnp.dtype(self.config.dtype)
        # table_VD goes on to the masked LM's softmax, which is tied to it.
        embeddings = BertEmbeddings(size, c.dropout, c.eps, kernel_init(c), dtype, name="embeddings")
        x_BLD, table_VD = embeddings(
            batch["tokens"], batch["segments"], batch.get("positions"), dropout_key, _EMBEDDINGS
        )
        mask_BL = batch["mask"]
        # The mask is over keys only. Padded queries attend too, as in the original: nothing reads their output.
        implementation = choose(c, platform()).name
        mask = AttentionMask(tokens_BM=mask_BL, implementation=implementation)
        # The reference adds an array, which broadcasts over heads and queries; kernels apply the rule tile by tile.
        if implementation == "reference":
            mask = padding_bias(mask_BL)
        out_BLD, layers = scan_layers(
            Block, c, x_BLD, mask, dropout_key, states=states, initializing=self.is_initializing()
        )
        # [CLS] through a layer that pretraining trains with next-sentence prediction; classifiers start from it.
        pooled_BD = jnp.tanh(Linear("BD,D_->B_", size, kernel_init(c), dtype, name="pooler")(out_BLD[:, 0]))
        return Encoding(out_BLD, mask_BL, pooled_BD, (x_BLD, *layers) if states else (), table_VD)
