"""Attention as its formula reads, with the weights BHLM as an array: what kernels are measured against, and what a
CPU runs (Vaswani et al. 2017, section 3.2)."""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.layers.matmul import custom_gradient

Residuals: TypeAlias = tuple[jax.Array, jax.Array, jax.Array, jax.Array, DropoutKey | None, jax.Array | int]
"""What the backward pass keeps: q, k, v, the attention weights, and how to draw their dropout mask again."""


class WeightDropout(NamedTuple):
    """The dropout of attention weights.

    Args:
        rate: the share of weights that become 0.
        key: the key of the step's masks; None: no dropout.
        site: which of the model's dropouts this is.
        longest: the greatest of several lengths that sequences are padded to, in which weights are numbered; 0: there
            is one length.
    """

    rate: float = 0.0
    key: DropoutKey | None = None
    site: jax.Array | int = 0
    longest: int = 0


NO_DROPOUT = WeightDropout()


class Drop(NamedTuple):
    """What a program is compiled for: the rate, and the dims (H, L, M) by which weights are numbered; (): their own."""

    rate: float
    whole: tuple[int, ...]


def attend(
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
    y_BHLK = _attend(q_BHLK, k_BHMK, v_BHMK, bias_BHLM, dropped.key, dropped.site, drop)
    return y_BHLK.swapaxes(1, 2)


def attention_weights(q_BHLK: jax.Array, k_BHMK: jax.Array, bias_BHLM: jax.Array) -> jax.Array:
    """softmax(q·k/sqrt(K) + bias) over the keys → BHLM, float32."""
    # Scaled behind the product and in float32: q/sqrt(K) rounded to bfloat16 would lose bits of the logits.
    logits_BHLM = jnp.einsum("BHLK,BHMK->BHLM", q_BHLK, k_BHMK).astype(jnp.float32) * q_BHLK.shape[-1] ** -0.5
    return jax.nn.softmax(logits_BHLM + bias_BHLM, axis=-1)


@custom_gradient(nondiff_argnums=(6,))
def _attend(
    q_BHLK: jax.Array,
    k_BHMK: jax.Array,
    v_BHMK: jax.Array,
    bias_BHLM: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array | int,
    drop: Drop,
) -> jax.Array:
    return _attend_forward(q_BHLK, k_BHMK, v_BHMK, bias_BHLM, dropout_key, site, drop)[0]


def _attend_forward(
    q_BHLK: jax.Array,
    k_BHMK: jax.Array,
    v_BHMK: jax.Array,
    bias_BHLM: jax.Array,
    dropout_key: DropoutKey | None,
    site: jax.Array | int,
    drop: Drop,
) -> tuple[jax.Array, Residuals]:
    # Softmax in float32, then the compute dtype: this is the largest array that the backward pass keeps.
    weights_BHLM = attention_weights(q_BHLK, k_BHMK, bias_BHLM).astype(v_BHMK.dtype)
    y_BHLK = jnp.einsum("BHLM,BHMK->BHLK", dropout(weights_BHLM, drop.rate, dropout_key, site, drop.whole), v_BHMK)
    # The weights are kept, in the compute dtype. Logits, mask and dropped weights are not: the gradient needs no
    # logits, and a counter-based mask costs less to draw again than to store.
    return y_BHLK, (q_BHLK, k_BHMK, v_BHMK, weights_BHLM, dropout_key, site)


def _attend_backward(drop: Drop, saved: Residuals, dy_BHLK: jax.Array) -> tuple[jax.Array | None, ...]:
    """dlogits = weights · (dweights - Σ weights · dweights), then back through both products.

    On a CPU XLA is slow at a product whose summed dim is not the last of its left factor, hence the swapaxes.
    """
    q_BHLK, k_BHMK, v_BHMK, weights_BHLM, dropout_key, site = saved
    dropped_BHLM = dropout(weights_BHLM, drop.rate, dropout_key, site, drop.whole)
    dv_BHKM = jnp.einsum("BHKL,BHLM->BHKM", dy_BHLK.swapaxes(2, 3), dropped_BHLM)
    # The same mask once more: dropout is linear, and its own transpose.
    dweights_BHLM = jnp.einsum("BHLK,BHMK->BHLM", dy_BHLK, v_BHMK)
    dweights_BHLM = dropout(dweights_BHLM, drop.rate, dropout_key, site, drop.whole)
    dweights_BHLM = dweights_BHLM.astype(jnp.float32)
    # The mean is formed from the same rounded weights as the differences, so that a row's dlogits sum to zero also in
    # bfloat16, as softmax's gradient must.
    mean_BHL1 = (weights_BHLM * dweights_BHLM).sum(-1, keepdims=True)
    dlogits_BHLM = weights_BHLM * (dweights_BHLM - mean_BHL1) * q_BHLK.shape[-1] ** -0.5
    # Softmax and its gradient are float32; the products on both sides run in the compute dtype.
    dlogits_BHLM = dlogits_BHLM.astype(q_BHLK.dtype)
    dq_BHLK = jnp.einsum("BHLM,BHMK->BHLK", dlogits_BHLM, k_BHMK)
    dk_BHKM = jnp.einsum("BHKL,BHLM->BHKM", q_BHLK.swapaxes(2, 3), dlogits_BHLM)
    return dq_BHLK, dk_BHKM.swapaxes(2, 3), dv_BHKM.swapaxes(2, 3), None, None, None


_attend.defvjp(_attend_forward, _attend_backward)
