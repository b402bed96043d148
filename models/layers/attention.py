"""Multi-head attention (Vaswani et al. 2017)."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.layers.blocks import Init, Linear, fused_projections
from contexture.models.layers.dropout import DropoutKey, dropout

KVCache = tuple[jax.Array, jax.Array]
"""The keys and values of a layer that are remembered, BMHK each."""


def attend(
    q_BLHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    bias_BHLM: jax.Array,
    *,
    rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    site: jax.Array | int = 0,
) -> jax.Array:
    """softmax(q·k/sqrt(K) + bias)·v → BLHK; the softmax in float32; dropout on its weights.

    bias broadcasts: a mask over keys is (B, 1, 1, M). It is a constant: no gradient comes back to it.
    """
    q_BHLK, k_BHMK, v_BHMK = (x.swapaxes(1, 2) for x in (q_BLHK, k_BMHK, v_BMHK))
    y_BHLK: Any = _attend(q_BHLK, k_BHMK, v_BHMK, bias_BHLM, dropout_key, site, rate)
    return y_BHLK.swapaxes(1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def _attend(*arguments: Any) -> jax.Array:
    return _forward(*arguments)[0]


def _forward(
    q_BHLK: jax.Array,
    k_BHMK: jax.Array,
    v_BHMK: jax.Array,
    bias_BHLM: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array | int,
    rate: float,
) -> tuple[jax.Array, Any]:
    logits_BHLM = jnp.einsum("BHLK,BHMK->BHLM", q_BHLK, k_BHMK).astype(jnp.float32) * q_BHLK.shape[-1] ** -0.5
    weights_BHLM = jax.nn.softmax(logits_BHLM + bias_BHLM, axis=-1).astype(v_BHMK.dtype)
    y_BHLK = jnp.einsum("BHLM,BHMK->BHLK", dropout(weights_BHLM, rate, dropout_key, site), v_BHMK)
    return y_BHLK, (q_BHLK, k_BHMK, v_BHMK, weights_BHLM, dropout_key, site)


def _backward(rate: float, saved: Any, dy_BHLK: jax.Array) -> tuple[Any, ...]:
    """The mean is made of the same rounded weights as what it is taken from, so that what adds up to nothing does. Each
    product has the dim that it sums over last on its left: a CPU's XLA is slow where it is not."""
    q_BHLK, k_BHMK, v_BHMK, weights_BHLM, dropout_key, site = saved
    dropped_BHLM = dropout(weights_BHLM, rate, dropout_key, site)
    dv_BHKM = jnp.einsum("BHKL,BHLM->BHKM", dy_BHLK.swapaxes(2, 3), dropped_BHLM)
    dweights_BHLM = dropout(jnp.einsum("BHLK,BHMK->BHLM", dy_BHLK, v_BHMK), rate, dropout_key, site)
    dweights_BHLM = dweights_BHLM.astype(jnp.float32)
    mean_BHL1 = (weights_BHLM * dweights_BHLM).sum(-1, keepdims=True)
    dlogits_BHLM = weights_BHLM * (dweights_BHLM - mean_BHL1) * q_BHLK.shape[-1] ** -0.5
    dlogits_BHLM = dlogits_BHLM.astype(q_BHLK.dtype)
    dq_BHLK = jnp.einsum("BHLM,BHMK->BHLK", dlogits_BHLM, k_BHMK)
    dk_BHKM = jnp.einsum("BHKL,BHLM->BHKM", q_BHLK.swapaxes(2, 3), dlogits_BHLM)
    return dq_BHLK, dk_BHKM.swapaxes(2, 3), dv_BHKM.swapaxes(2, 3), None, None, None


_attend.defvjp(_forward, _backward)


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

    def __call__(
        self, x_BLD: jax.Array, bias_BHLM: jax.Array, dropout_key: DropoutKey | None, site: jax.Array | int
    ) -> jax.Array:
        q_BLHK, k_BMHK, v_BMHK = fused_projections((self.query, self.key, self.value), x_BLD)
        return self.out(attend(q_BLHK, k_BMHK, v_BMHK, bias_BHLM, rate=self.rate, dropout_key=dropout_key, site=site))

    def step(
        self, x_BLD: jax.Array, bias_BHLM: jax.Array, kv_cache: KVCache, start: jax.Array | int
    ) -> tuple[jax.Array, KVCache]:
        """L tokens more after those that are remembered: their keys and values go to places start, start + 1, … of the
        memory, and they attend to all of it, as bias allows. → (x_BLD, the memory)."""
        keys_BMHK, values_BMHK = (
            jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=1)
            for old, new in zip(kv_cache, (self.key(x_BLD), self.value(x_BLD)), strict=True)
        )
        return self.out(attend(self.query(x_BLD), keys_BMHK, values_BMHK, bias_BHLM)), (keys_BMHK, values_BMHK)
