"""The softmax over words that ELMo is trained with, sampled or whole (Jean et al. 2015; bilm-tf)."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from contexture.models.encoding import Encoding
from contexture.models.heads.chunked_softmax import TokenLosses, next_token_loss
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.sharding import constrain

SITE = 1 << 15
"""Dropout's site before the softmax, beyond those of any backbone and below a task's head's."""


def expected_count(ids: jax.Array, tries: jax.Array, vocab: int) -> jax.Array:
    """The chance that a word is among the negatives: 1 - (1 - p)^tries with p = log((k + 2)/(k + 1))/log(V + 1), words
    being numbered by descending frequency (Zipf's law)."""
    k = ids.astype(jnp.float32)
    p = jnp.log1p(1.0 / (k + 1.0)) / math.log(vocab + 1.0)
    return -jnp.expm1(tries * jnp.log1p(-p))


def sampled_loss(
    x_BLJ: jax.Array,
    kernel_VJ: jax.Array,
    bias_V: jax.Array,
    next_BL: jax.Array,
    negatives_S: jax.Array,
    tries: jax.Array,
) -> jax.Array:
    """Cross entropy of each next word against S negatives that the whole batch shares, in nats: f32 BL.

    As TensorFlow's sampled_softmax_loss: the log of each word's expected count is taken off its logit, and where a
    negative is the next word itself it does not count.
    """
    V = bias_V.shape[0]

    def corrected(logits: jax.Array, ids: jax.Array) -> jax.Array:
        return logits + bias_V[ids] - jnp.log(expected_count(ids, tries, V))

    chosen_BLJ = constrain(kernel_VJ[next_BL], "BLJ").astype(x_BLJ.dtype)
    chosen_SJ = kernel_VJ[negatives_S].astype(x_BLJ.dtype)
    label_BL = corrected(jnp.einsum("BLJ,BLJ->BL", x_BLJ, chosen_BLJ, preferred_element_type=jnp.float32), next_BL)
    logits_BLS = jnp.einsum("BLJ,SJ->BLS", x_BLJ, chosen_SJ, preferred_element_type=jnp.float32)
    logits_BLS += corrected(jnp.zeros(negatives_S.shape), negatives_S)[None, None]
    logits_BLS = jnp.where(negatives_S[None, None] == next_BL[:, :, None], -jnp.inf, logits_BLS)
    top_BL = jax.lax.stop_gradient(jnp.maximum(logits_BLS.max(-1), label_BL))
    others_BL = jnp.exp(logits_BLS - top_BL[:, :, None]).sum(-1)
    return top_BL + jnp.log(jnp.exp(label_BL - top_BL) + others_BL) - label_BL


class BiLmHead(nn.Module):
    """How well each direction predicts its next word: Encoding of lanes, next and next_backward i32 BL, their weights
    f32 BL → {"forward": TokenLosses, "backward": TokenLosses}.

    Both share the kernel VJ, drawn normal with 1/sqrt(J), and the bias V. Against the batch's negatives i32 _S, S for
    each direction, found in `tries` f32 _ draws, where it holds them (a sampled loss, whose hits are 0); else against
    the whole vocabulary.
    """

    sizes: dict[str, int]
    rate: float
    dtype: Any

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> dict[str, TokenLosses]:
        V, J = self.sizes["V"], self.sizes["J"]
        kernel_VJ = constrain(self.param("kernel", nn.initializers.normal(1.0 / math.sqrt(J)), (V, J)), "V_")
        bias_V = self.param("bias", nn.initializers.zeros, (V,))
        x_BLD = dropout(encoding.hidden_BLD, self.rate, dropout_key, SITE)
        scored = {}
        for number, (name, suffix) in enumerate((("forward", ""), ("backward", "_backward"))):
            x_BLJ = x_BLD[..., number * J : (number + 1) * J]
            next_BL, weights_BL = batch["next" + suffix], batch["next_weights" + suffix]
            if "negatives" in batch:
                drawn = batch["negatives"][number], batch["tries"][number]
                loss_BL = sampled_loss(x_BLJ, kernel_VJ, bias_V, next_BL, *drawn)
                scored[name] = TokenLosses((loss_BL * weights_BL).sum(), loss_BL, jnp.zeros_like(loss_BL))
            else:
                table_VJ = kernel_VJ.astype(x_BLJ.dtype)
                scored[name] = next_token_loss(x_BLJ, table_VJ, next_BL, weights_BL, bias_V)
        return scored
