"""GPT's decoder: GPT-1 (Radford et al. 2018), GPT-2 (2019) and GPT-3 (Brown et al. 2020), by configuration."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.config import MAX_SIZE, GptConfig
from contexture.models.encoding import Encoding
from contexture.models.layers.attention.mask import HIDDEN, AttentionMask, choose
from contexture.models.layers.attention.module import Attention, AttentionMap, KVCache
from contexture.models.layers.blocks import FeedForward, Init, Norm, lookup, scan_layers
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.layers.packed_rows import last_tokens
from contexture.models.sharding import constrain, gathered, platform

# Dropout's sites: 0 for the embeddings, then layer · 3 + 1, 2, 3.
_EMBEDDINGS, _ATTENTION, _AFTER_ATTENTION, _AFTER_FFN = 0, 1, 2, 3
_SITES_PER_LAYER = 3
Masks: TypeAlias = AttentionMask | tuple[jax.Array, ...]
"""What attention may see: the rule for a kernel, or arrays of biases for dense and banded layers."""


def kernel_init(config: GptConfig) -> Init:
    """Normal with init_std."""
    return nn.initializers.normal(config.init_std)


def _residual_init(config: GptConfig) -> Init:
    """Normal with init_std/sqrt(2·layers), for the kernels that write into the residual stream.

    There are 2·layers of them. With the scale, the stream's variance does not grow with the depth (Radford et al. 2019,
    section 2.3). The released code has no such scale.
    """
    scale = (2 * config.layers) ** -0.5 if config.init == "paper" else 1.0
    return nn.initializers.normal(config.init_std * scale)


def sizes(config: GptConfig, classes: int = 2) -> dict[str, int]:
    """Returns a configuration's sizes by letter: {"V": 50257, "D": 768, …}; C is a head's classes."""
    return {
        "V": config.vocab,
        "L": config.length,
        "N": config.layers,
        "D": config.hidden,
        "H": config.heads,
        "K": config.hidden // config.heads,
        "F": config.ffn,
        "C": classes,
    }


def training_flops(config: GptConfig, size: dict[str, int]) -> float:
    """3·B·L·(N·(8D² + 4DF + 4LD) + 2DV): FLOPs of one step on B sequences of L tokens.

    8D² are attention's four projections, 4DF the feed-forward, 4LD both products of attention (masked pairs counted),
    2DV the softmax. The backward pass costs twice the forward. Recomputation is not counted.
    """
    D, F, N, V, L = config.hidden, config.ffn, config.layers, config.vocab, size["L"]
    return 3.0 * size["B"] * size.get("A", 1) * L * (N * (8 * D * D + 4 * D * F + 4 * L * D) + 2 * D * V)


def causal_biases(
    config: GptConfig, query_BL: jax.Array, key_BM: jax.Array, visible_BLM: jax.Array
) -> tuple[jax.Array, ...]:
    """Returns the attention biases, (B or 1) 1 L M each: one for dense layers, and with a local window one for banded.

    A query sees the keys at or before it where visible_BLM allows; in banded layers only the last `local_window` of
    them, itself counted.

    Args:
        config: the model's configuration.
        query_BL: the queries' positions in the text.
        key_BM: the keys' positions in the text.
        visible_BLM: which keys a query may see apart from their order.
    """
    distance_BLM = query_BL[:, :, None] - key_BM[:, None, :]
    dense_BLM = visible_BLM & (distance_BLM >= 0)
    # As arrays, banded layers compute all pairs and mask most of them (Child et al. 2019). Kernels skip them.
    masks = (dense_BLM, dense_BLM & (distance_BLM < config.local_window)) if config.local_window else (dense_BLM,)
    return tuple(jnp.where(mask_BLM, 0.0, HIDDEN)[:, None] for mask_BLM in masks)


class Block(nn.Module):
    """Attention and feed-forward, each with a norm and a residual sum.

    pre-norm:   x = x + attention(norm(x)), then x = x + ffn(norm(x))
    post-norm:  x = norm(x + attention(x)), then x = norm(x + ffn(x))

    Layers 0, 2, … are dense. Layers 1, 3, … are banded if there is a second bias.
    """

    config: GptConfig

    def setup(self) -> None:
        c, size, dtype = self.config, sizes(self.config), jnp.dtype(self.config.dtype)
        init, out_init = kernel_init(c), _residual_init(c)
        # out_init is for the two kernels that write into the residual stream:
        # attention's output and the feed-forward's second.
        self.attention = Attention(
            size, c.attention_dropout, init, dtype, out_init, c.biases, c.remat == "attention", c.quantization
        )
        self.attention_norm = Norm(c.eps, dtype, c.biases)
        self.ffn = FeedForward(size, c.gelu, init, dtype, out_init, c.biases, c.quantization)
        self.ffn_norm = Norm(c.eps, dtype, c.biases)

    def __call__(self, x_BLD: jax.Array, layer: jax.Array, masks: Masks, dropout_key: DropoutKey | None) -> jax.Array:
        # In a scan the layer's number is an array, and so is the site: one program draws every layer's own masks.
        mask, site = _of_layer(masks, layer, self.config.local_window), layer * _SITES_PER_LAYER
        return self._sublayers(
            x_BLD, lambda y: self.attention(y, mask, dropout_key, site + _ATTENTION), dropout_key, site
        )

    def maps(self, x_BLD: jax.Array, layer: jax.Array, mask_BL: jax.Array) -> AttentionMap:
        """Returns the attention of this layer, whose input is x_BLD (`Attention.maps`); mask_BL: as in `Gpt`."""
        column_1L = jnp.arange(x_BLD.shape[1])[None]
        masks = causal_biases(self.config, column_1L, column_1L, jnp.ones((1, 1, 1), bool))
        bias_11LM = _of_layer(masks, layer, self.config.local_window)
        assert isinstance(bias_11LM, jax.Array)
        # A pre-norm layer attends from its normalised input, as in `_sublayers`.
        return self.attention.maps(self.attention_norm(x_BLD) if self.config.norm == "pre" else x_BLD, bias_11LM)

    def step(
        self, x_BLD: jax.Array, layer: int, biases: tuple[jax.Array, ...], kv_cache: KVCache, start: jax.Array | int
    ) -> tuple[jax.Array, KVCache]:
        """Runs L new tokens behind the cached ones, without dropout (`Attention.step`) → (x_BLD, the new cache)."""

        def attention(y_BLD: jax.Array) -> jax.Array:
            nonlocal kv_cache
            # Decoding runs the layers one by one: `layer` is a Python number, and indexing picks the bias.
            y_BLD, kv_cache = self.attention.step(y_BLD, biases[layer % len(biases)], kv_cache, start)
            return y_BLD

        return self._sublayers(x_BLD, attention, None, 0), kv_cache

    def _sublayers(
        self,
        x_BLD: jax.Array,
        attention: Callable[[jax.Array], jax.Array],
        dropout_key: DropoutKey | None,
        site: jax.Array | int,
    ) -> jax.Array:
        """Runs attention and feed-forward with their norms and residual sums."""
        rate = self.config.dropout
        if self.config.norm == "pre":
            # The residual stream itself is never normalised before the end, so gradients reach every layer unscaled.
            x_BLD += dropout(attention(self.attention_norm(x_BLD)), rate, dropout_key, site + _AFTER_ATTENTION)
            return x_BLD + dropout(self.ffn(self.ffn_norm(x_BLD)), rate, dropout_key, site + _AFTER_FFN)
        # Post-norm, as in Vaswani et al. 2017: the sums themselves are normalised, and no norm follows at the end.
        x_BLD = self.attention_norm(x_BLD + dropout(attention(x_BLD), rate, dropout_key, site + _AFTER_ATTENTION))
        return self.ffn_norm(x_BLD + dropout(self.ffn(x_BLD), rate, dropout_key, site + _AFTER_FFN))


def _of_layer(masks: Masks, layer: jax.Array, local_window: int) -> AttentionMask | jax.Array:
    if isinstance(masks, AttentionMask):
        # One program serves both kinds of layers: the window of a dense one is longer than any text.
        window = jnp.where(layer % 2 == 0, MAX_SIZE, local_window) if local_window else None
        return replace(masks, window=window)
    # In a scan the layer's number is an array: both biases exist, and a select takes one.
    return masks[0] if len(masks) == 1 else jnp.where(layer % 2 == 0, *masks)


class GptEmbeddings(nn.Module):
    """dropout(token + position) (GPT; Radford et al. 2018, section 3.1): tokens_BL → (x_BLD, table_VD).

    table_VD is the table of a tied softmax. positions_BL is 0, 1, … unless given.

    `one_table` (finetune-transformer-lm) joins both tables. Dropout then falls on the rows of the joint table instead
    of on the sum, with one mask for all uses in a step, and the softmax's table has the positions after the tokens.
    """

    sizes: dict[str, int]
    rate: float
    token_init: Init
    position_init: Init
    dtype: DTypeLike
    one_table: bool = False

    @nn.compact
    def __call__(
        self, tokens_BL: jax.Array, positions_BL: jax.Array | None, dropout_key: DropoutKey | None, site: int
    ) -> tuple[jax.Array, jax.Array]:
        V, P, D = self.sizes["V"], self.sizes["L"], self.sizes["D"]
        table_VD = gathered(self.param("tokens", self.token_init, (V, D)), "VD", "V_")
        position_LD = gathered(self.param("positions", self.position_init, (P, D)), "LD", "L_")
        softmax_VD = table_VD
        if self.one_table:
            # The mask belongs to the table: its rows are numbered by table row, not by sequence, so that all
            # microbatches and devices of a step draw the same one.
            key = None if dropout_key is None else DropoutKey(dropout_key.key, jnp.arange(V + P, dtype=jnp.uint32))
            softmax_VD = dropout(jnp.concatenate([table_VD, position_LD]), self.rate, key, site)
            table_VD, position_LD = softmax_VD[:V], softmax_VD[V:]
        # Without given positions the rows are a slice, whose gradient is a sum; a gather's would be a scatter-add.
        positions_BLD = position_LD[None, : tokens_BL.shape[1]] if positions_BL is None else position_LD[positions_BL]
        # Rows are added in the tables' float32 and rounded to dtype after that.
        x_BLD = constrain(lookup(table_VD, tokens_BL) + positions_BLD, "BLD").astype(self.dtype)
        return x_BLD if self.one_table else dropout(x_BLD, self.rate, dropout_key, site), softmax_VD


def embeddings(config: GptConfig) -> GptEmbeddings:
    """Returns the embedding tables of a configuration."""
    # The original draws tokens with 0.02 and positions with 0.01 (gpt-2, model.py).
    token_init, dtype = kernel_init(config), jnp.dtype(config.dtype)
    position_init = nn.initializers.normal(config.position_std)
    return GptEmbeddings(
        sizes(config), config.dropout, token_init, position_init, dtype, config.one_table, name="embeddings"
    )


class Gpt(nn.Module):
    """tokens, mask (i32 BL) → Encoding, pooled as each sequence's last token.

    packs (i32 BL), if the batch holds them, number the documents of a sequence: tokens see each other within one
    only. positions (i32 BL) are each token's place in its document.
    """

    config: GptConfig

    @nn.compact
    def __call__(
        self, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None, *, states: bool = False
    ) -> Encoding:
        c, tokens_BL, mask_BL = self.config, batch["tokens"], batch["mask"]
        # Tokens are ordered by column, also in a pack, whose `positions` start again at each document.
        column_BL = jnp.arange(tokens_BL.shape[1])[None]
        # Attention does not need the mask: padding is on the right, and no token sees what comes after it.
        # B is 1 then: one mask serves all sequences.
        visible_BLM = jnp.ones((1, 1, 1), bool)
        if "packs" in batch:
            visible_BLM = batch["packs"][:, :, None] == batch["packs"][:, None, :]
        implementation = choose(c, platform(), packed="packs" in batch).name
        masks: Masks = AttentionMask(packs_BL=batch.get("packs"), causal=True, implementation=implementation)
        # The reference adds arrays of biases, made once here for all layers; kernels apply the rule tile by tile.
        if implementation == "reference":
            masks = causal_biases(c, column_BL, column_BL, visible_BLM)
        x_BLD, table_VD = embeddings(c)(tokens_BL, batch.get("positions"), dropout_key, _EMBEDDINGS)
        out_BLD, layers = scan_layers(
            Block, c, x_BLD, masks, dropout_key, states=states, initializing=self.is_initializing()
        )
        if c.norm == "pre":
            out_BLD = Norm(c.eps, jnp.dtype(c.dtype), c.biases, name="norm")(out_BLD)
        # The last state is the one that heads read: after the final norm, as in transformers.
        all_states = (x_BLD, *layers[:-1], out_BLD) if states else ()
        # The last token is the only one that has seen all others: GPT-1's [extract].
        pooled_BD = last_tokens(out_BLD, batch)
        return Encoding(out_BLD, mask_BL, pooled_BD, all_states, table_VD)
