"""Losses as sums, so that parts of a batch add up exactly."""

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
    """Logits (…, V) and labels i32 (…) → the loss of each in nats, and whether the label's logit is the largest (0, 1).

    The label's logit is picked by comparison, not by a gather, so that a vocabulary cut over devices stays cut.
    """
    logits = logits.astype(jnp.float32)
    top = logits.max(-1)
    shifted = logits - jax.lax.stop_gradient(top)[..., None]
    vocabulary = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    chosen = jnp.where(vocabulary == labels[..., None], shifted, 0.0).sum(-1)
    return jnp.log(jnp.exp(shifted).sum(-1)) - chosen, (chosen >= 0.0).astype(jnp.float32)
