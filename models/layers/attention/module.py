"""Multi-head attention (Vaswani et al. 2017, section 3.2)."""

import functools
from typing import TypeAlias

import flax.linen as nn
import jax
from jax.typing import DTypeLike

from contexture.models.config import Quantization
from contexture.models.layers.attention import cudnn, reference
from contexture.models.layers.attention.mask import AttentionMask
from contexture.models.layers.attention.reference import NO_DROPOUT, WeightDropout
from contexture.models.layers.blocks import Init, Linear, fused_projections
from contexture.models.layers.dropout import DropoutKey
from contexture.models.sharding import platform

KVCache: TypeAlias = tuple[jax.Array, jax.Array]
"""The cached keys and values of one layer, BMHK each."""
AttentionMap: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]
"""Attention weights BHLM in float32, and the queries BLHK and keys BMHK that they come from."""


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
        return reference.attend(q_BLHK, k_BMHK, v_BMHK, mask, dropped)
    if mask.implementation == "cudnn":  # chosen for causal attention without dropout, window and documents
        return cudnn.attend(q_BLHK, k_BMHK, v_BMHK)
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
        return reference.attention_weights(q_BLHK.swapaxes(1, 2), k_BMHK.swapaxes(1, 2), bias_BHLM), q_BLHK, k_BMHK

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
