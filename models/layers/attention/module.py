"""Multi-head attention (Vaswani et al. 2017, section 3.2): the layer, and its formula with the weights BHLM as an
array, which a CPU runs and kernels are measured against."""

import functools
import math
from typing import NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.config import Quantization
from contexture.models.layers.attention.mask import PADDED, AttentionMask
from contexture.models.layers.blocks import Init, Linear, fused_projections
from contexture.models.layers.dropout import NO_DROPOUT, DropoutKey, WeightDropout, dropout
from contexture.models.layers.matmul import custom_gradient
from contexture.models.sharding import constrain, is_unsharded, platform

KVCache: TypeAlias = tuple[jax.Array, jax.Array]
"""The cached keys and values of one layer, BMHK each."""
AttentionMap: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]
"""Attention weights BHLM in float32, and the queries BLHK and keys BMHK that they come from."""


_WHOLE = 1 << 21
"""Maximum number of weights BHLM that a CPU computes at once without a gradient; more are computed tile by tile."""
_TILES = (128, 64)
"""Queries of a tile."""
Residuals: TypeAlias = tuple[jax.Array, jax.Array, jax.Array, jax.Array, DropoutKey | None, jax.Array | int]
"""What the backward pass keeps: q, k, v, the attention weights, and how to draw their dropout mask again."""


class Drop(NamedTuple):
    """What a program is compiled for: the rate, and the dims (H, L, M) by which weights are numbered; (): their own."""

    rate: float
    whole: tuple[int, ...]


def reference_attend(
    q_BLHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    bias_BHLM: jax.Array,
    dropped: WeightDropout = NO_DROPOUT,
) -> jax.Array:
    """dropout(softmax(q·k/sqrt(K) + bias))·v → BLHK; the softmax in float32.

    bias broadcasts: a mask over keys is (B, 1, 1, M). It is a constant: it receives no gradient.
    """
    # Heads before positions: each product below is then a batch of plain matrix products.
    q_BHLK, k_BHMK, v_BHMK = (x.swapaxes(1, 2) for x in (q_BLHK, k_BMHK, v_BMHK))
    longest = dropped.longest
    # Numbered as in the longest sequence, so that a weight's dropout does not depend on padding.
    drop = Drop(dropped.rate, (q_BLHK.shape[2], longest, longest) if longest else ())
    y_BHLK = _reference(q_BHLK, k_BHMK, v_BHMK, bias_BHLM, dropped.key, dropped.site, drop)
    return y_BHLK.swapaxes(1, 2)


def attention_weights(q_BHLK: jax.Array, k_BHMK: jax.Array, bias_BHLM: jax.Array) -> jax.Array:
    """softmax(q·k/sqrt(K) + bias) over the keys → BHLM, float32."""
    # Scaled behind the product and in float32: q/sqrt(K) rounded to bfloat16 would lose bits of the logits.
    logits_BHLM = jnp.einsum("BHLK,BHMK->BHLM", q_BHLK, k_BHMK).astype(jnp.float32) * q_BHLK.shape[-1] ** -0.5
    return jax.nn.softmax(logits_BHLM + bias_BHLM, axis=-1)


@custom_gradient(nondiff_argnums=(6,))
def _reference(
    q_BHLK: jax.Array,
    k_BHMK: jax.Array,
    v_BHMK: jax.Array,
    bias_BHLM: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array | int,
    drop: Drop,
) -> jax.Array:
    """Computes attention without a gradient; `_reference_forward` also keeps what a gradient needs."""
    L = q_BHLK.shape[2]
    # The largest that divides the queries: rows that sequences share are multiples of 64.
    tile = next((tile for tile in _TILES if L % tile == 0), L)
    dropped = dropout_key is not None and drop.rate > 0
    one_cpu = platform() == "cpu" and all(map(is_unsharded, "BHL"))
    if one_cpu and not dropped and tile < L and math.prod((*q_BHLK.shape[:3], k_BHMK.shape[2])) > _WHOLE:
        return _in_tiles(q_BHLK, k_BHMK, v_BHMK, bias_BHLM, tile)
    return _reference_forward(q_BHLK, k_BHMK, v_BHMK, bias_BHLM, dropout_key, site, drop)[0]


def _in_tiles(q_BHLK: jax.Array, k_BHMK: jax.Array, v_BHMK: jax.Array, bias_BHLM: jax.Array, tile: int) -> jax.Array:
    """Computes attention for `tile` queries of one sequence at a time, so that the weights stay in a CPU's caches.

    Skips keys that no query of the tile sees: other sequences of the row, later tokens, padding.
    """
    B, H, L, K = q_BHLK.shape
    M = k_BHMK.shape[2]
    key_tiles = M // tile
    # One branch for each number of key tiles: all small numbers, and few large ones.
    sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, key_tiles)
    counts = sorted({min(n, key_tiles) for n in sizes}) if M % tile == 0 else [0]

    def of_row(row: jax.Array) -> jax.Array:
        # One sequence, with its dim B; a bias may be one for all.
        q, k, v, bias = (
            x if len(x) == 1 else jax.lax.dynamic_slice_in_dim(x, row, 1) for x in (q_BHLK, k_BHMK, v_BHMK, bias_BHLM)
        )

        def of_tile(number: jax.Array) -> jax.Array:
            own, own_bias = (
                x if x.shape[2] == 1 else jax.lax.dynamic_slice_in_dim(x, number * tile, tile, 2) for x in (q, bias)
            )
            return _of_seen(own, k, v, own_bias, tile, counts)

        tiles = jax.lax.map(of_tile, jnp.arange(L // tile))
        return tiles.swapaxes(0, 1).reshape(H, L, K)

    return jax.lax.map(of_row, jnp.arange(B))


def _of_seen(
    q_1HLK: jax.Array, k_1HMK: jax.Array, v_1HMK: jax.Array, bias_1HLM: jax.Array, tile: int, counts: list[int]
) -> jax.Array:
    """Attention of a tile of queries to the keys from the first to the last one that any of them sees → HLK."""

    def attention(first: jax.Array | int, keys: int) -> jax.Array:
        k, v = (x if not keys else jax.lax.dynamic_slice_in_dim(x, first, keys, 2) for x in (k_1HMK, v_1HMK))
        bias = bias_1HLM if not keys else jax.lax.dynamic_slice_in_dim(bias_1HLM, first, keys, 3)
        return jnp.einsum("BHLM,BHMK->BHLK", attention_weights(q_1HLK, k, bias).astype(v.dtype), v)[0]

    if counts[-1] < 2:
        return attention(0, 0)
    # A key with this bias has the weight 0 in float32: skipping it changes nothing.
    is_seen_M = (bias_1HLM > PADDED).any((0, 1, 2))
    is_seen = is_seen_M.reshape(-1, tile).any(1)
    first, behind = jnp.argmax(is_seen), len(is_seen) - jnp.argmax(is_seen[::-1])
    # A sequence of padding alone sees its padding: then no key is skipped.
    count = jnp.where(is_seen.any(), behind - first, len(is_seen))
    which = jnp.searchsorted(jnp.array(counts), count)
    starts = [jnp.minimum(first, len(is_seen) - n) * tile for n in counts]
    ways = [functools.partial(attention, start, n * tile) for start, n in zip(starts, counts, strict=True)]
    return jax.lax.switch(which, ways)


def _reference_forward(
    q_BHLK: jax.Array,
    k_BHMK: jax.Array,
    v_BHMK: jax.Array,
    bias_BHLM: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array | int,
    drop: Drop,
) -> tuple[jax.Array, Residuals]:
    # A device with a part of the queries needs the keys of all parts.
    keys_BHMK, values_BHMK = _gathered_keys(k_BHMK), _gathered_keys(v_BHMK)
    # Softmax in float32, then the compute dtype: this is the largest array that the backward pass keeps.
    weights_BHLM = attention_weights(q_BHLK, keys_BHMK, bias_BHLM).astype(v_BHMK.dtype)
    dropped_BHLM = dropout(weights_BHLM, drop.rate, dropout_key, site, drop.whole)
    y_BHLK = jnp.einsum("BHLM,BHMK->BHLK", dropped_BHLM, values_BHMK)
    # The weights are kept, in the compute dtype. Logits, mask and dropped weights are not: the gradient needs no
    # logits, and a counter-based mask costs less to draw again than to store. Of keys and values each device keeps its
    # own; where sequences are cut the backward pass gathers them again.
    return y_BHLK, (q_BHLK, k_BHMK, v_BHMK, weights_BHLM, dropout_key, site)


def _gathered_keys(k_BHMK: jax.Array) -> jax.Array:
    """Returns keys or values whole along the sequence on each device: one that has a part of the queries reads all."""
    return k_BHMK if is_unsharded("L") else constrain(k_BHMK, "BHM_")


def _own_keys(dk_BHMK: jax.Array) -> jax.Array:
    """Returns a gradient of keys or values, summed over the parts of the queries, sharded as the keys are."""
    return dk_BHMK if is_unsharded("L") else constrain(dk_BHMK, "BHL_")


def _reference_backward(drop: Drop, saved: Residuals, dy_BHLK: jax.Array) -> tuple[jax.Array | None, ...]:
    """dlogits = weights · (dweights - Σ weights · dweights), then back through both products.

    On a CPU XLA is slow at a product whose summed dim is not the last of its left factor, hence the swapaxes.
    """
    q_BHLK, k_BHMK, v_BHMK, weights_BHLM, dropout_key, site = saved
    dropped_BHLM = dropout(weights_BHLM, drop.rate, dropout_key, site, drop.whole)
    dv_BHKM = jnp.einsum("BHKL,BHLM->BHKM", dy_BHLK.swapaxes(2, 3), dropped_BHLM)
    # The same mask once more: dropout is linear, and its own transpose.
    dweights_BHLM = jnp.einsum("BHLK,BHMK->BHLM", dy_BHLK, _gathered_keys(v_BHMK))
    dweights_BHLM = dropout(dweights_BHLM, drop.rate, dropout_key, site, drop.whole)
    dweights_BHLM = dweights_BHLM.astype(jnp.float32)
    # The mean is formed from the same rounded weights as the differences, so that a row's dlogits sum to zero also in
    # bfloat16, as softmax's gradient must.
    mean_BHL1 = (weights_BHLM * dweights_BHLM).sum(-1, keepdims=True)
    dlogits_BHLM = weights_BHLM * (dweights_BHLM - mean_BHL1) * q_BHLK.shape[-1] ** -0.5
    # Softmax and its gradient are float32; the products on both sides run in the compute dtype.
    dlogits_BHLM = dlogits_BHLM.astype(q_BHLK.dtype)
    dq_BHLK = jnp.einsum("BHLM,BHMK->BHLK", dlogits_BHLM, _gathered_keys(k_BHMK))
    dk_BHKM = jnp.einsum("BHKL,BHLM->BHKM", q_BHLK.swapaxes(2, 3), dlogits_BHLM)
    return dq_BHLK, _own_keys(dk_BHKM.swapaxes(2, 3)), _own_keys(dv_BHKM.swapaxes(2, 3)), None, None, None


_reference.defvjp(_reference_forward, _reference_backward)


def attend(
    q_BLHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    mask: AttentionMask | jax.Array,
    dropped: WeightDropout = NO_DROPOUT,
) -> jax.Array:
    """dropout(softmax(q·k/sqrt(K) + mask))·v → BLHK: by the reference where the mask is an array that broadcasts to
    BHLM, by a kernel where it is a rule."""
    # `choose` decided this where the mask was made: an array only for the reference.
    if not isinstance(mask, AttentionMask):
        return reference_attend(q_BLHK, k_BMHK, v_BMHK, mask, dropped)
    if mask.implementation == "cudnn":  # chosen for causal attention without dropout, window and documents
        return jax.nn.dot_product_attention(q_BLHK, k_BMHK, v_BMHK, is_causal=True, implementation="cudnn")
    # Pallas takes as long to import as all of this package, and a CPU's user needs none of it.
    from contexture.models.layers.attention import flash, gpu_kernel, tpu_kernel

    # A CPU has no kernel of its own and interprets the TPU's, slowly.
    on = platform()
    return flash.attend(
        q_BLHK,
        k_BMHK,
        v_BMHK,
        mask,
        dropped,
        kernel=gpu_kernel if on == "gpu" else tpu_kernel,
        interpret=on == "cpu",
    )


class Attention(nn.Module):
    """Self-attention: x_BLD, mask → BLD.

    Args:
        sizes: the sizes of the letters D, H, K and L.
        rate: the rate of the dropout of the weights.
        kernel_init: the initialiser of the kernels.
        dtype: the dtype of the products.
        out_init: the initialiser of the output projection; None: kernel_init.
        biases: whether the four maps have biases.
        recompute: whether the backward pass computes the weights again instead of keeping them.
        quantization: the numbers that the maps' factors are rounded to.
    """

    sizes: dict[str, int]
    rate: float
    kernel_init: Init
    dtype: DTypeLike
    out_init: Init | None = None
    biases: bool = True
    recompute: bool = False
    quantization: Quantization = "none"

    def setup(self) -> None:
        linear = functools.partial(Linear, dtype=self.dtype, biases=self.biases, quantization=self.quantization)
        # Three maps with parameters of their own, as in published checkpoints; __call__ computes them as one product.
        projection = ("BLD,DHK->BLHK", self.sizes, self.kernel_init)
        self.query, self.key, self.value = linear(*projection), linear(*projection), linear(*projection)
        self.out = linear("BLHK,HKD->BLD", self.sizes, self.out_init or self.kernel_init)

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: AttentionMask | jax.Array,
        dropout_key: DropoutKey | None,
        site: jax.Array | int,
    ) -> jax.Array:
        q_BLHK, k_BMHK, v_BMHK = fused_projections((self.query, self.key, self.value), x_BLD)

        # Weights are numbered in the longest sequence (L), so that their dropout does not depend on padding.
        def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return attend(q, k, v, mask, WeightDropout(self.rate, dropout_key, site, self.sizes["L"]))

        # Recomputed, q, k and v alone are kept, and not the weights BHLM.
        return self.out((jax.checkpoint(attention) if self.recompute else attention)(q_BLHK, k_BMHK, v_BMHK))

    def maps(self, x_BLD: jax.Array, bias_BHLM: jax.Array) -> AttentionMap:
        """Returns the weights of every head without dropout, computed from queries and keys: kernels store none."""
        q_BLHK, k_BMHK = self.query(x_BLD), self.key(x_BLD)
        return attention_weights(q_BLHK.swapaxes(1, 2), k_BMHK.swapaxes(1, 2), bias_BHLM), q_BLHK, k_BMHK

    def step(
        self, x_BLD: jax.Array, bias_BHLM: jax.Array, kv_cache: KVCache, start: jax.Array | int
    ) -> tuple[jax.Array, KVCache]:
        """Attends from L new tokens to all cached ones and each other, as bias allows → (x_BLD, the new cache).

        The new keys and values are written to rows start, start + 1, … of the cache.
        """
        # The cache has its final length from the start, and unwritten rows are hidden by the bias: shapes stay the same
        # from token to token, so that one compiled step serves all of them.
        keys_BMHK, values_BMHK = (
            jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=1)
            for old, new in zip(kv_cache, (self.key(x_BLD), self.value(x_BLD)), strict=True)
        )
        return self.out(attend(self.query(x_BLD), keys_BMHK, values_BMHK, bias_BHLM)), (keys_BMHK, values_BMHK)
