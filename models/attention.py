"""Multi-head attention (Vaswani et al. 2017)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from models.blocks import Init, Linear, together
from models.dropout import Noise, dropout

Memory = tuple[jax.Array, jax.Array]
"""The keys and values of a layer that are remembered, BMHK each."""


def attend(
    q_BLHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    bias_BHLM: jax.Array,
    *,
    rate: float = 0.0,
    noise: Noise | None = None,
    site: jax.Array | int = 0,
) -> jax.Array:
    """softmax(q·k/sqrt(K) + bias)·v → BLHK; the softmax in float32; dropout on its weights.

    bias broadcasts: a mask over keys is (B, 1, 1, M).
    """
    scale = q_BLHK.shape[-1] ** -0.5
    logits_BHLM = jnp.einsum("BLHK,BMHK->BHLM", q_BLHK * jnp.asarray(scale, q_BLHK.dtype), k_BMHK)
    weights_BHLM = jax.nn.softmax(logits_BHLM.astype(jnp.float32) + bias_BHLM, axis=-1).astype(v_BMHK.dtype)
    return jnp.einsum("BHLM,BMHK->BLHK", dropout(weights_BHLM, rate, noise, site), v_BMHK)


class Attention(nn.Module):
    """Self-attention: x_BLD, bias_BHLM → BLD. out_init: of the output's map, if not like the others."""

    sizes: dict[str, int]
    rate: float
    kernel_init: Init
    dtype: Any
    out_init: Init | None = None
    biases: bool = True

    def setup(self) -> None:
        inward = ("BLD,DHK->BLHK", self.sizes, self.kernel_init, self.dtype, self.biases)
        self.query, self.key, self.value = Linear(*inward), Linear(*inward), Linear(*inward)
        self.out = Linear("BLHK,HKD->BLD", self.sizes, self.out_init or self.kernel_init, self.dtype, self.biases)

    def __call__(self, x_BLD: jax.Array, bias_BHLM: jax.Array, noise: Noise | None, site: jax.Array | int) -> jax.Array:
        q_BLHK, k_BMHK, v_BMHK = together((self.query, self.key, self.value), x_BLD)
        return self.out(attend(q_BLHK, k_BMHK, v_BMHK, bias_BHLM, rate=self.rate, noise=noise, site=site))

    def step(
        self, x_BLD: jax.Array, bias_BHLM: jax.Array, memory: Memory, start: jax.Array | int
    ) -> tuple[jax.Array, Memory]:
        """L tokens more after those that are remembered: their keys and values go to places start, start + 1, … of the
        memory, and they attend to all of it, as bias allows. → (x_BLD, the memory)."""
        keys_BMHK, values_BMHK = (
            jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=1)
            for old, new in zip(memory, (self.key(x_BLD), self.value(x_BLD)), strict=True)
        )
        return self.out(attend(self.query(x_BLD), keys_BMHK, values_BMHK, bias_BHLM)), (keys_BMHK, values_BMHK)
