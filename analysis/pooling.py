"""How the vectors of a sentence's words or tokens become one: POOLINGS. Needs no jax before one is used."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import jax

SentencePool: TypeAlias = Literal["mean", "mean-words", "last", "cls"]
"""A vector for each sentence; the names of POOLINGS."""
Pool: TypeAlias = Literal["none", SentencePool]
"""The same, or `none`: a vector for each word or token."""


@dataclass(frozen=True)
class Pooling:
    """A way of pooling.

    Args:
        pool: (states f32 NBLD, units BL, words BL) → NBD. units: which places hold the sentence; words: these without
            a BERT's [CLS] and [SEP]. A sentence without any has the vector 0.
        reads_cls: whether it is only for families whose sentences begin with [CLS].
    """

    pool: "Callable[[jax.Array, jax.Array, jax.Array], jax.Array]"
    reads_cls: bool = False


def mean_over(states_NBLD: "jax.Array", chosen_BL: "jax.Array") -> "jax.Array":
    """Returns the mean of the vectors at the chosen places, NBD; 0 where none is."""
    from jax import numpy as jnp

    weights_BL = chosen_BL.astype(jnp.float32)
    weights_BL /= jnp.maximum(weights_BL.sum(1, keepdims=True), 1.0)
    # A sum, not a product of matrices, which some devices round to 16 bits.
    return (states_NBLD * weights_BL[None, :, :, None]).sum(2)


def first(chosen_BL: "jax.Array") -> "jax.Array":
    """Returns only the first of the chosen places of each row."""
    return chosen_BL & (chosen_BL.cumsum(1) == 1)


POOLINGS: dict[str, Pooling] = {
    "mean": Pooling(lambda states, units, words: mean_over(states, units)),
    "mean-words": Pooling(lambda states, units, words: mean_over(states, words)),
    # Reversed along L, the last word is the first.
    "last": Pooling(lambda states, units, words: mean_over(states, first(words[:, ::-1])[:, ::-1])),
    "cls": Pooling(lambda states, units, words: mean_over(states, first(units)), reads_cls=True),
}
