"""Losses as sums, so that parts of a batch add up exactly."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class Sum:
    """A total and the weight it stands for; the mean is total / weight."""

    total: jax.Array
    weight: jax.Array

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, self.weight + other.weight)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits (…, V) and labels i32 (…) → the loss of each in nats, and whether it is a hit (0, 1).

    A hit, in every accuracy of the project: the label's logit is strictly greater than all others. A tie is no hit, so
    that a model which tells nothing apart scores nothing; neither is NaN.

    The label's logit is picked by comparison, not by a gather, so that a vocabulary cut over devices stays cut.
    """
    logits = logits.astype(jnp.float32)
    is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == labels[..., None]
    label, others = jnp.where(is_label, logits, -jnp.inf).max(-1), jnp.where(is_label, -jnp.inf, logits).max(-1)
    shifted = logits - jax.lax.stop_gradient(jnp.maximum(label, others))[..., None]
    chosen = jnp.where(is_label, shifted, 0.0).sum(-1)
    return jnp.log(jnp.exp(shifted).sum(-1)) - chosen, (label > others).astype(jnp.float32)


def has_best(scores: Any) -> Any:
    """Scores (…, C), of jax or numpy → whether one is strictly greater than all others: a prediction without that, out
    of a tie or of NaN, is no hit."""
    return (scores == scores.max(-1, keepdims=True)).sum(-1) == 1
