"""The softmax over words that ELMo's biLM is trained with, sampled or full (Jean et al. 2015; bilm-tf)."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from contexture.models.encoding import Encoding
from contexture.models.heads.chunked_softmax import TokenLosses, next_token_loss
from contexture.models.layers.dropout import DropoutKey, dropout
from contexture.models.sharding import constrain

SITE = 1 << 15
"""Dropout's site before the softmax: above the sites of any backbone, below a task head's."""

READS = {"next": "BL", "next_backward": "BL", "negatives": "_S"}
"""The batch fields of the words whose rows the sampled loss reads, and their dims."""


def _join(fields: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the fields READS of a batch as one array X, whole on every device."""
    return jnp.concatenate([constrain(fields[name].reshape(-1), "_") for name in READS])


def _split(x_X: jax.Array, fields: Mapping[str, jax.Array]) -> list[jax.Array]:
    """Undoes _join, also of an array XJ: each field's part in its shape, sharded as the field is."""
    ends = np.cumsum([fields[name].size for name in READS])[:-1]
    parts = zip(READS.items(), jnp.split(x_X, ends), strict=True)
    rest = "_" * (x_X.ndim - 1)
    # Whole before it is cut into sequences: so is the gradient of a part before they are joined again.
    return [
        constrain(constrain(part, "_" + rest).reshape(*fields[name].shape, *x_X.shape[1:]), dims + rest)
        for (name, dims), part in parts
    ]


def number_words(batch: dict[str, jax.Array], vocab: int) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns (X words, the batch whose fields READS number them): each word that the batch reads is in X once, at its
    number. The other places of X, which no field refers to, hold ids past the vocabulary: V, V + 1, …

    [7, 3, 7, 9] of V = 10 → [3, 7, 12, 9] and [1, 0, 1, 3]. The batch's field `words` holds them too.
    """
    ids_X = _join(batch)
    place_X = jnp.arange(ids_X.size, dtype=jnp.int32)
    # Only sorts, since accelerators scatter single numbers one after the other: equal words come to lie side by side,
    # the place of the first is their number, and sorting by the old places puts the numbers in the batch's order.
    # Every device sorts all: the partitioner would cut these small arrays, and send their parts around.
    sorted_X, from_X = (constrain(x, "_") for x in jax.lax.sort_key_val(ids_X, place_X))
    is_first_X = constrain(jnp.concatenate([jnp.ones(1, bool), sorted_X[1:] != sorted_X[:-1]]), "_")
    number_X = constrain(jax.lax.cummax(jnp.where(is_first_X, place_X, 0)), "_")
    number_X = constrain(jax.lax.sort_key_val(from_X, number_X)[1], "_")
    words_X = constrain(jnp.where(is_first_X, sorted_X, vocab + place_X), "_")
    return words_X, {**batch, **dict(zip(READS, _split(number_X, batch), strict=True)), "words": words_X}


def expected_count(ids: jax.Array, tries: jax.Array, vocab: int) -> jax.Array:
    """1 - (1 - p)^tries with p = log((k + 2)/(k + 1))/log(V + 1): the probability that word k is among the negatives.

    The negatives are drawn log-uniformly, which fits Zipf's law: words are numbered by descending frequency. `tries`
    is how many draws it took to find S distinct words (TensorFlow's log_uniform_candidate_sampler, unique=True).
    """
    k = ids.astype(jnp.float32)
    # log1p and expm1, because p is as small as 1e-7: 1 - (1 - p)^tries in float32 would be rounding noise.
    p = jnp.log1p(1.0 / (k + 1.0)) / math.log(vocab + 1.0)
    return -jnp.expm1(tries * jnp.log1p(-p))


class WordRows(NamedTuple):
    """The softmax's parameters of some words: ids X, rows of the kernel XJ, biases X; X may be several dims."""

    ids_X: jax.Array
    kernel_XJ: jax.Array
    bias_X: jax.Array


def gather_words(kernel_VJ: jax.Array, bias_V: jax.Array, batch: Mapping[str, jax.Array]) -> list[WordRows]:
    """Returns the rows of each of the batch's fields READS, all of them by one gather.

    A gather's gradient is a scatter into an array of the table's size, so each one more costs several passes over it.
    """
    # Whole on every device that shares the batch: each then adds the same gradients to the same rows, and what the
    # devices exchange are gradients of the rows, not of the table.
    rows_X = _join(batch)
    ids_X = batch["words"][rows_X] if "words" in batch else rows_X
    arrays = ids_X, constrain(kernel_VJ[rows_X], "__"), constrain(bias_V[rows_X], "_")
    return [WordRows(*parts) for parts in zip(*(_split(x, batch) for x in arrays), strict=True)]


def sampled_loss(x_BLJ: jax.Array, labels: WordRows, negatives: WordRows, tries: jax.Array, vocab: int) -> jax.Array:
    """Cross entropy of each next word (labels, BL) against S negatives that the whole batch shares, in nats: f32 BL.

    As TensorFlow's sampled_softmax_loss (remove_accidental_hits=True): logit(k) = x·kernel_k + bias_k -
    log(expected_count(k)), and negatives that are the next word itself are left out.
    """
    next_BL, label_BLJ, _ = labels
    negatives_S, negative_SJ, _ = negatives

    def corrected(logits: jax.Array, words: WordRows) -> jax.Array:
        # Frequent words are drawn as negatives far more often. Without the correction the model would learn
        # p(word)/expected_count(word) instead of p(word).
        return logits + words.bias_X - jnp.log(expected_count(words.ids_X, tries, vocab))

    label_BLJ, negative_SJ = label_BLJ.astype(x_BLJ.dtype), negative_SJ.astype(x_BLJ.dtype)
    label_BL = corrected(jnp.einsum("BLJ,BLJ->BL", x_BLJ, label_BLJ, preferred_element_type=jnp.float32), labels)
    logits_BLS = jnp.einsum("BLJ,SJ->BLS", x_BLJ, negative_SJ, preferred_element_type=jnp.float32)
    logits_BLS += corrected(jnp.zeros(negatives_S.shape), negatives)[None, None]
    # A negative that is the next word would be in the sum twice and push its own logit down.
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

    A training step may give the rows of the words that it reads alone (`number_words`): the batch then holds `words`.
    """

    sizes: dict[str, int]
    rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self, encoding: Encoding, batch: dict[str, jax.Array], dropout_key: DropoutKey | None = None
    ) -> dict[str, TokenLosses]:
        V, J = self.sizes["V"], self.sizes["J"]
        # Rows are of every part of the table: sharded by V, they would be sent around.
        rows, dims = (batch["words"].shape[0], "__") if "words" in batch else (V, "V_")
        kernel_VJ = constrain(self.param("kernel", nn.initializers.normal(1.0 / math.sqrt(J)), (rows, J)), dims)
        bias_V = self.param("bias", nn.initializers.zeros, (rows,))
        x_BLD = dropout(encoding.hidden_BLD, self.rate, dropout_key, SITE)
        labels, negatives = [], None
        if "negatives" in batch:
            *labels, negatives = gather_words(kernel_VJ, bias_V, batch)
        losses = {}
        for number, (name, suffix) in enumerate((("forward", ""), ("backward", "_backward"))):
            # Each direction predicts from its own half of D = 2J: the other half has seen the answer.
            x_BLJ = x_BLD[..., number * J : (number + 1) * J]
            next_BL, weights_BL = batch["next" + suffix], batch["next_weights" + suffix]
            if negatives is not None:
                drawn = WordRows(*(x[number] for x in negatives))
                loss_BL = sampled_loss(x_BLJ, labels[number], drawn, batch["tries"][number], V)
                # Over so few words the best logit says nothing about accuracy: no hits are counted.
                losses[name] = TokenLosses((loss_BL * weights_BL).sum(), loss_BL, jnp.zeros_like(loss_BL))
            else:
                losses[name] = next_token_loss(x_BLJ, kernel_VJ, next_BL, weights_BL, bias_V)
        return losses
