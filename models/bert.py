"""BERT's embeddings, encoder and pretraining heads (Devlin et al. 2018, section 3; post-norm as in Vaswani et
al. 2017)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.config import BertConfig
from contexture.models.encoding import Encoding
from contexture.models.heads.linear_head import LinearHead, logits_over_vocabulary, softmax_table
from contexture.models.layers.attention.mask import HIDDEN, PADDED, AttentionMask, choose
from contexture.models.layers.attention.module import Attention, AttentionMap
from contexture.models.layers.blocks import ACTIVATIONS, FeedForward, Init, Linear, Norm, lookup, scan_layers
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.layers.packed_rows import at_places, first_tokens
from contexture.models.sharding import constrain, gathered, platform

# Dropout's sites: 0 for the embeddings, then layer · 3 + 1, 2, 3.
_EMBEDDINGS, _ATTENTION, _AFTER_ATTENTION, _AFTER_FFN = 0, 1, 2, 3
_SITES_PER_LAYER = 3
_SPAN_PLACES, _PLACE_WIDTH = 20, 200
"""Vectors for places in a span, and their width, as in SpanBERT's code."""


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


class BertEmbeddings(nn.Module):
    """dropout(norm(token + position + segment)) (BERT, section 3.2): tokens_BL, segments_BL → (x_BLD, table_VD).

    table_VD is the token table, for a tied softmax. positions_BL is 0, 1, … unless given.
    """

    sizes: dict[str, int]
    rate: float
    eps: float
    kernel_init: Init
    dtype: DTypeLike

    def setup(self) -> None:
        size = self.sizes
        # Positions are learned rows, not sines: none is there beyond the model's length.
        self.tokens = self.param("tokens", self.kernel_init, (size["V"], size["D"]))
        self.positions = self.param("positions", self.kernel_init, (size["L"], size["D"]))
        self.segments = self.param("segments", self.kernel_init, (size["T"], size["D"]))
        self.norm = Norm(self.eps, self.dtype)

    def __call__(
        self,
        tokens_BL: jax.Array,
        segments_BL: jax.Array,
        positions_BL: jax.Array | None,
        dropout_key: DropoutKey | None,
        site: int,
    ) -> tuple[jax.Array, jax.Array]:
        L = tokens_BL.shape[1]
        # Whole in D on every device: D is sharded over devices that share
        # the batch too, and a lookup's result by batch.
        table_VD, position_LD = gathered(self.tokens, "VD", "V_"), gathered(self.positions, "LD", "L_")
        # Without given positions the rows are a slice, whose gradient is a sum; a gather's would be a scatter-add.
        positions_BLD = position_LD[None, :L] if positions_BL is None else position_LD[positions_BL]
        # One-hot times table instead of a gather, as in the original (modeling.py, embedding_postprocessor): with so
        # few rows the product is faster, and so is its gradient.
        # A model with one type of segment reads both texts of a pair as that one.
        segments_BL = jnp.minimum(segments_BL, self.sizes["T"] - 1)
        one_hot_BLT = jax.nn.one_hot(segments_BL, self.sizes["T"], dtype=self.segments.dtype)
        segments_BLD = jnp.einsum("BLT,TD->BLD", one_hot_BLT, gathered(self.segments, "TD", "T_"))
        x_BLD = constrain(lookup(table_VD, tokens_BL) + positions_BLD + segments_BLD, "BLD")
        return dropout(self.norm(x_BLD), self.rate, dropout_key, site), table_VD


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
        # Dropout falls on what is added, before the sum and its norm (modeling.py, transformer_model).
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


def packed_bias(packs_BL: jax.Array) -> jax.Array:
    """Returns the attention bias of keys of other texts, B1LM: their weight is exactly 0."""
    return jnp.where(packs_BL[:, :, None] == packs_BL[:, None, :], 0.0, HIDDEN)[:, None]


class Bert(nn.Module):
    """tokens, segments, mask (all i32 BL) → Encoding, pooled as tanh(dense([CLS])).

    positions (i32 BL) are each token's place in its text, 0, 1, … unless the batch holds them. packs (i32 BL), if the
    batch holds them, number the texts of a row: tokens see each other within one only (`layers.packed_rows`).
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
        mask_BL, packs_BL = batch["mask"], batch.get("packs")
        # The mask is over keys only. Padded queries attend too, as in the original: nothing reads their output.
        implementation = choose(c, platform()).name
        # Padding is a pack of its own, that no text sees.
        tokens_BM = mask_BL if packs_BL is None else None
        mask = AttentionMask(tokens_BM=tokens_BM, packs_BL=packs_BL, implementation=implementation)
        # The reference adds an array, which broadcasts over heads and queries; kernels apply the rule tile by tile.
        if implementation == "reference":
            mask = padding_bias(mask_BL) if packs_BL is None else packed_bias(packs_BL)
        out_BLD, layers = scan_layers(
            Block, c, x_BLD, mask, dropout_key, states=states, initializing=self.is_initializing()
        )
        first_BD = first_tokens(out_BLD, batch)
        # [CLS] through a layer that pretraining trains with next-sentence prediction; classifiers start from it.
        pooled_BD = jnp.tanh(Linear("BD,D_->B_", size, kernel_init(c), dtype, name="pooler")(first_BD))
        return Encoding(out_BLD, mask_BL, pooled_BD, (x_BLD, *layers) if states else (), table_VD)


class MaskedLmHead(nn.Module):
    """norm(activation(x·W + b))·tableᵀ + bias of the masked positions: Encoding, slots i32 BP → float32 BPV.

    The table is the token table (tied) or the head's own. The bias over the vocabulary is always the head's.
    """

    sizes: dict[str, int]
    activation: str
    eps: float
    kernel_init: Init
    dtype: DTypeLike
    tied: bool = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        # Only the P masked positions pass through the head: with 15 % masked, logits over all L would be seven times
        # as many.
        # In shared rows too a slot is a place in its sequence.
        x_BPD = at_places(encoding.hidden_BLD, batch["slots"], batch)
        # A layer of the head's own before the softmax, as in the original (get_masked_lm_output).
        x_BPD = Linear("BPD,D_->BP_", self.sizes, self.kernel_init, self.dtype, name="transform")(x_BPD)
        x_BPD = Norm(self.eps, self.dtype, name="norm")(ACTIVATIONS[self.activation](x_BPD))
        # The original's output_bias: one number a word, also where the table is tied.
        bias_V = self.param("bias", nn.initializers.zeros, (self.sizes["V"],))
        table_VD = softmax_table(self, encoding).astype(self.dtype)
        return logits_over_vocabulary(x_BPD, table_VD) + bias_V[None, None]


class SpanBoundaryHead(nn.Module):
    """The masked tokens from what is beside their span (SpanBERT, Joshi et al. 2020, section 3.2): Encoding, places
    i32 BP → float32 BPV.

    f = norm(gelu(W₂·norm(gelu(W₁·[left; right; place])))), and the scores f·tableᵀ + bias. left and right are the
    vectors of the two tokens beside the span; place is a learned vector for the token's place in it, the last of them
    for all beyond. The table is the token table (tied) or the head's own.
    """

    sizes: dict[str, int]
    activation: str
    eps: float
    kernel_init: Init
    dtype: DTypeLike
    tied: bool = True

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        size = {**self.sizes, "E": _PLACE_WIDTH}
        left_BPD, right_BPD = (at_places(encoding.hidden_BLD, batch[side], batch) for side in ("left", "right"))
        table = self.param("places", self.kernel_init, (_SPAN_PLACES, _PLACE_WIDTH))
        # As in the embeddings: with so few rows a product is faster than a lookup, and so is its gradient.
        one_hot_BPO = jax.nn.one_hot(jnp.minimum(batch["offset"], _SPAN_PLACES - 1), _SPAN_PLACES, dtype=self.dtype)
        place_BPE = jnp.einsum("BPO,OE->BPE", one_hot_BPO, table.astype(self.dtype))
        # W₁ in three parts, whose sum is its product with the three vectors side by side; one bias for all.
        init, dtype = self.kernel_init, self.dtype
        x_BPD = Linear("BPD,D_->BP_", size, init, dtype, name="left")(left_BPD)
        x_BPD += Linear("BPD,D_->BP_", size, init, dtype, False, name="right")(right_BPD)
        x_BPD += Linear("BPE,E_->BP_", size, init, dtype, False, name="place")(place_BPE)
        x_BPD = Norm(self.eps, self.dtype, name="norm")(ACTIVATIONS[self.activation](x_BPD))
        x_BPD = Linear("BPD,D_->BP_", size, init, dtype, name="transform")(x_BPD)
        x_BPD = Norm(self.eps, dtype, name="norm_2")(ACTIVATIONS[self.activation](x_BPD))
        bias_V = self.param("bias", nn.initializers.zeros, (self.sizes["V"],))
        return logits_over_vocabulary(x_BPD, softmax_table(self, encoding).astype(self.dtype)) + bias_V[None, None]


class NextSentenceHead(LinearHead):
    """Whether sentence b follows a: Encoding → float32 BC; class 0: it follows, 1: it is a random one."""

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> jax.Array:
        # Straight on the pooled vector, without dropout, as in the original (run_pretraining.py).
        return self.logits("BD,DC->BC", self.pooled(encoding))
