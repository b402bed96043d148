"""The softmax over words that ELMo's biLM is trained with, sampled or full (Jean et al. 2015; bilm-tf)."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from contexture.models.encoding import Encoding
from contexture.models.heads.chunked_softmax import TokenLosses, next_token_loss
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.sharding import constrain

SITE = 1 << 15
"""Dropout's site before the softmax: above those of any backbone, below a task head's."""


def expected_count(ids: jax.Array, tries: jax.Array, vocab: int) -> jax.Array:
    """1 - (1 - p)^tries with p = log((k + 2)/(k + 1))/log(V + 1): the probability that word k is among the negatives.

    The negatives are drawn log-uniformly, which fits Zipf's law: words are numbered by descending frequency. `tries`
    is how many draws it took to find S distinct words (TensorFlow's log_uniform_candidate_sampler, unique=True).
    """
    k = ids.astype(jnp.float32)
    # log1p and expm1, because p is as small as 1e-7: 1 - (1 - p)^tries in float32 would be rounding noise.
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

    As TensorFlow's sampled_softmax_loss (remove_accidental_hits=True): logit(k) = x·kernel_k + bias_k -
    log(expected_count(k)), and negatives that are the next word itself are left out.
    """
    V = bias_V.shape[0]

    def corrected(logits: jax.Array, ids: jax.Array) -> jax.Array:
        # Frequent words are drawn as negatives far more often. Without the correction the model would learn
        # p(word)/expected_count(word) instead of p(word).
        return logits + bias_V[ids] - jnp.log(expected_count(ids, tries, V))

    # Only the rows that take part are gathered: B·L + S of them instead of all V.
    label_BLJ = constrain(kernel_VJ[next_BL], "BLJ").astype(x_BLJ.dtype)
    negative_SJ = kernel_VJ[negatives_S].astype(x_BLJ.dtype)
    label_BL = corrected(jnp.einsum("BLJ,BLJ->BL", x_BLJ, label_BLJ, preferred_element_type=jnp.float32), next_BL)
    logits_BLS = jnp.einsum("BLJ,SJ->BLS", x_BLJ, negative_SJ, preferred_element_type=jnp.float32)
    logits_BLS += corrected(jnp.zeros(negatives_S.shape), negatives_S)[None, None]
    # A negative that is the next word would stand in the sum twice and push its own logit down.
    logits_BLS = jnp.where(negatives_S[None, None] == next_BL[:, :, None], -jnp.inf, logits_BLS)
    # log-sum-exp with the maximum taken off. The maximum is a constant for the gradient: it cancels.
    top_BL = jax.lax.stop_gradient(jnp.maximum(logits_BLS.max(-1), label_BL))
    negatives_BL = jnp.exp(logits_BLS - top_BL[:, :, None]).sum(-1)
    return top_BL + jnp.log(jnp.exp(label_BL - top_BL) + negatives_BL) - label_BL


class BiLmHead(nn.Module):
    """The losses of each direction's next words: Encoding of lanes, next and next_backward i32 BL, their weights f32 BL
    → {"forward": TokenLosses, "backward": TokenLosses}.

    Both directions share the kernel VJ, initialised normally with 1/sqrt(J), and the bias V.

    If the batch holds negatives (i32 _S, S for each direction, found in `tries` f32 _ draws), the loss is sampled and
    its hits are 0. Otherwise it is taken over the whole vocabulary.
    """

    sizes: dict[str, int]
    rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> dict[str, TokenLosses]:
        V, J = self.sizes["V"], self.sizes["J"]
        kernel_VJ = constrain(self.param("kernel", nn.initializers.normal(1.0 / math.sqrt(J)), (V, J)), "V_")
        bias_V = self.param("bias", nn.initializers.zeros, (V,))
        x_BLD = dropout(encoding.hidden_BLD, self.rate, dropout_key, SITE)
        losses = {}
        for number, (name, suffix) in enumerate((("forward", ""), ("backward", "_backward"))):
            # Each direction predicts from its own half of D = 2J: the other half has seen the answer.
            x_BLJ = x_BLD[..., number * J : (number + 1) * J]
            next_BL, weights_BL = batch["next" + suffix], batch["next_weights" + suffix]
            if "negatives" in batch:
                negatives_S, tries = batch["negatives"][number], batch["tries"][number]
                loss_BL = sampled_loss(x_BLJ, kernel_VJ, bias_V, next_BL, negatives_S, tries)
                # Over so few words the best logit says nothing about accuracy: no hits are counted.
                losses[name] = TokenLosses((loss_BL * weights_BL).sum(), loss_BL, jnp.zeros_like(loss_BL))
            else:
                table_VJ = kernel_VJ.astype(x_BLJ.dtype)
                losses[name] = next_token_loss(x_BLJ, table_VJ, next_BL, weights_BL, bias_V)
        return losses
