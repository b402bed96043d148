"""GPT's decoder: GPT-1 (Radford et al. 2018), GPT-2 (2019) and GPT-3 (Brown et al. 2020), by configuration."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.config import GptConfig
from contexture.models.encoding import Encoding
from contexture.models.layers.attention import Attention, KVCache
from contexture.models.layers.blocks import FeedForward, Norm, scan_layers
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.layers.embeddings import GptEmbeddings

# Dropout's sites: the embeddings, then three in each layer.
_EMBEDDINGS, _ATTENTION, _AFTER_ATTENTION, _AFTER_FFN = 0, 1, 2, 3
_SITES_PER_LAYER = 3
_UNSEEN = -1e10
"""Added to the logit of a key that must not be seen: its weight is then exactly 0."""


def kernel_init(config: GptConfig) -> Any:
    """Normal."""
    return nn.initializers.normal(config.init_std)


def _residual_init(config: GptConfig) -> Any:
    """Of the kernels that write into the residual stream, 2·layers of them (Radford et al. 2019, section 2.3)."""
    share = (2 * config.layers) ** -0.5 if config.init == "paper" else 1.0
    return nn.initializers.normal(config.init_std * share)


def sizes(config: GptConfig, classes: int = 2) -> dict[str, int]:
    """The letters of a configuration: {"V": 50257, "D": 768, …}; C a head's classes."""
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


FIELDS = {"tokens": "i32 BL", "mask": "i32 BL"}
"""What the backbone reads of a batch."""


def training_flops(config: GptConfig, size: dict[str, int]) -> float:
    """FLOPs of one step on B lines of L tokens, three times the forward's products, recomputation not counted: per
    token 8D² + 4DF a layer, 4LD for attention (masked pairs counted), 2DV for the softmax."""
    D, F, N, V, L = config.hidden, config.ffn, config.layers, config.vocab, size["L"]
    return 3.0 * size["B"] * size.get("A", 1) * L * (N * (8 * D * D + 4 * D * F + 4 * L * D) + 2 * D * V)


def causal_biases(config: GptConfig, query_BL: jax.Array, key_BM: jax.Array, seen_BLM: jax.Array) -> tuple[Any, ...]:
    """What is added to the logits, (B or 1) 1 L M each: in dense layers and, with a local window, in banded ones.

    query_BL, key_BM say where in its text a token stands; a key at or before its query is seen where seen_BLM, a band
    of `local_window` keys in banded layers.
    """
    back_BLM = query_BL[:, :, None] - key_BM[:, None, :]
    dense_BLM = seen_BLM & (back_BLM >= 0)
    masks = (dense_BLM, dense_BLM & (back_BLM < config.local_window)) if config.local_window else (dense_BLM,)
    return tuple(jnp.where(mask_BLM, 0.0, _UNSEEN)[:, None] for mask_BLM in masks)


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)) (pre-norm), or norm(x + attention(x)), then norm(x + ffn(x)).

    Layers 0, 2, … are dense, layers 1, 3, … banded where there is a second bias.
    """

    config: GptConfig

    def setup(self) -> None:
        c, size, dtype = self.config, sizes(self.config), jnp.dtype(self.config.dtype)
        inits = kernel_init(c), _residual_init(c)
        self.attention = Attention(size, c.attention_dropout, inits[0], dtype, inits[1], c.biases)
        self.attention_norm = Norm(c.eps, dtype, c.biases)
        self.ffn = FeedForward(size, c.gelu, inits[0], dtype, inits[1], c.biases)
        self.ffn_norm = Norm(c.eps, dtype, c.biases)

    def __call__(
        self, x_BLD: jax.Array, layer: jax.Array, biases: tuple[jax.Array, ...], dropout_key: DropoutKey | None
    ) -> jax.Array:
        bias_BHLM, site = _of_layer(biases, layer), layer * _SITES_PER_LAYER
        return self._around(
            x_BLD, lambda y: self.attention(y, bias_BHLM, dropout_key, site + _ATTENTION), dropout_key, site
        )

    def step(
        self, x_BLD: jax.Array, layer: int, biases: tuple[jax.Array, ...], kv_cache: KVCache, start: jax.Array | int
    ) -> tuple[jax.Array, KVCache]:
        """L tokens more after those that are remembered (`Attention.step`)."""

        def attention(y_BLD: jax.Array) -> jax.Array:
            nonlocal kv_cache
            y_BLD, kv_cache = self.attention.step(y_BLD, biases[layer % len(biases)], kv_cache, start)
            return y_BLD

        return self._around(x_BLD, attention, None, 0), kv_cache

    def _around(
        self,
        x_BLD: jax.Array,
        attention: Callable[[jax.Array], jax.Array],
        dropout_key: DropoutKey | None,
        site: jax.Array | int,
    ) -> jax.Array:
        rate = self.config.dropout
        if self.config.norm == "pre":
            x_BLD += dropout(attention(self.attention_norm(x_BLD)), rate, dropout_key, site + _AFTER_ATTENTION)
            return x_BLD + dropout(self.ffn(self.ffn_norm(x_BLD)), rate, dropout_key, site + _AFTER_FFN)
        x_BLD = self.attention_norm(x_BLD + dropout(attention(x_BLD), rate, dropout_key, site + _AFTER_ATTENTION))
        return self.ffn_norm(x_BLD + dropout(self.ffn(x_BLD), rate, dropout_key, site + _AFTER_FFN))


def _of_layer(biases: tuple[jax.Array, ...], layer: jax.Array) -> jax.Array:
    return biases[0] if len(biases) == 1 else jnp.where(layer % 2 == 0, *biases)


def embeddings(config: GptConfig) -> GptEmbeddings:
    """The tables of a configuration."""
    token_init, dtype = kernel_init(config), jnp.dtype(config.dtype)
    position_init = nn.initializers.normal(config.position_std)
    return GptEmbeddings(
        sizes(config), config.dropout, token_init, position_init, dtype, config.one_table, name="embeddings"
    )


class Gpt(nn.Module):
    """tokens, mask (i32 BL) → Encoding, pooled from each line's last token; the mask is read for that alone, since
    padding stands on the right and no token sees what comes after it.

    packs (i32 BL) says which tokens see each other, positions (i32 BL) where each stands, where they are given.
    """

    config: GptConfig

    @nn.compact
    def __call__(
        self, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None, *, states: bool = False
    ) -> Encoding:
        c, tokens_BL, mask_BL = self.config, batch["tokens"], batch["mask"]
        place_BL = jnp.arange(tokens_BL.shape[1])[None]
        seen_BLM = jnp.ones((1, 1, 1), bool)
        if "packs" in batch:
            seen_BLM = batch["packs"][:, :, None] == batch["packs"][:, None, :]
        biases = causal_biases(c, place_BL, place_BL, seen_BLM)
        x_BLD, table_VD = embeddings(c)(tokens_BL, batch.get("positions"), dropout_key, _EMBEDDINGS)
        out_BLD, layers = scan_layers(
            Block, (c,), x_BLD, biases, dropout_key, layers=c.layers, unroll=c.unroll, remat=c.remat, states=states
        )
        if c.norm == "pre":
            out_BLD = Norm(c.eps, jnp.dtype(c.dtype), c.biases, name="norm")(out_BLD)
        # The last state is what the heads read: after the final norm, as in transformers.
        every = (x_BLD, *layers[:-1], out_BLD) if states else ()
        last_B = jnp.maximum(mask_BL.sum(1) - 1, 0)
        pooled_BD = jnp.take_along_axis(out_BLD, last_B[:, None, None], axis=1)[:, 0]
        return Encoding(out_BLD, mask_BL, pooled_BD, every, table_VD)
