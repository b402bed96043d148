"""Losses as sums, so that microbatches add up to the whole batch."""

import math
from dataclasses import dataclass, field
from typing import TypeVar, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

Array = TypeVar("Array", jax.Array, np.ndarray)


@flax.struct.dataclass
class Sum:
    """A total and its weight; the mean is total / weight."""

    total: jax.Array
    weight: jax.Array

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, self.weight + other.weight)


@dataclass(frozen=True)
class NoLoss:
    """The objective (`train.objectives.Objective`) of static vectors, which have no pretraining: no heads, no terms."""

    heads: tuple[str, ...] = ()
    terms: dict[str, float] = field(default_factory=dict)

    def weights(self, batch: object) -> dict[str, jax.Array]:
        return {}

    def sums(self, outputs: object, batch: object) -> dict[str, Sum]:
        return {}

    def predictions(self, outputs: object) -> dict[str, jax.Array]:
        return {}


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """loss = log Σ exp(logits) - logits[label] in nats, and whether it is a hit (0, 1): (…, V), i32 (…) → (…), (…).

    A hit, in every accuracy of the project: the label's logit is strictly greater than all others. A tie is no hit, so
    a model that gives all labels the same logit scores 0; nor is NaN.
    """
    logits = logits.astype(jnp.float32)
    # The label's logit is selected by comparison, not by a gather: a vocabulary that is sharded stays sharded. A label
    # of -1 (none) matches nothing; the loss is finite all the same, and callers give it weight 0.
    is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == labels[..., None]
    label, others = jnp.where(is_label, logits, -jnp.inf).max(-1), jnp.where(is_label, -jnp.inf, logits).max(-1)
    # The greatest logit is subtracted, so no exponential overflows, and the loss is the same. It needs no gradient: its
    # two contributions cancel.
    shifted = logits - jax.lax.stop_gradient(jnp.maximum(label, others))[..., None]
    chosen = jnp.where(is_label, shifted, 0.0).sum(-1)
    return jnp.log(jnp.exp(shifted).sum(-1)) - chosen, (label > others).astype(jnp.float32)


def has_best(scores: Array) -> Array:
    """Scores (…, C) → whether one is strictly greater than all others: without one (a tie, NaN) there is no hit."""
    # NaN equals nothing, not even itself: a row with NaN as its maximum has no best.
    return cast(Array, (scores == scores.max(-1, keepdims=True)).sum(-1) == 1)


def is_hit(scores: np.ndarray, label: int) -> bool:
    """Scores (C,) → whether the label's is strictly greater than all others, as in `cross_entropy`."""
    return bool(has_best(scores)) and int(scores.argmax()) == label


def without_padding(logits_BLC: jax.Array, mask_BL: jax.Array) -> jax.Array:
    """Returns the logits in float32 with padding at -1e10, so that no place of it is chosen.

    Finite and not -inf: a sequence that only fills up a batch is all padding, and its loss must not be NaN, though it
    has weight 0.
    """
    return jnp.where(mask_BL[:, :, None] > 0, logits_BLC.astype(jnp.float32), -1e10)


def span_candidates(logits_BLC: jax.Array, mask_BL: jax.Array, count: int) -> dict[str, jax.Array]:
    """Returns the best places for the start (C = 0) and the end (C = 1) of an answer, best first; ties go to the first.

    start_places, end_places i32 Bn, start_scores, end_scores f32 Bn; and null_scores f32 B, the sum of both at place 0.

    Differs: the original also ranks padding, which holds no answer, so it may keep fewer real candidates.
    """
    logits_BLC = logits_BLC.astype(jnp.float32)
    inside_BLC = jnp.where(mask_BL[:, :, None] > 0, logits_BLC, -jnp.inf)
    # top_k refuses more places than the sequence has; -inf keeps padding last.
    count = min(count, logits_BLC.shape[1])
    # Place 0 is the first token ([CLS]), where a question without an answer has both ends (run_squad.py).
    best: dict[str, jax.Array] = {"null_scores": logits_BLC[:, 0].sum(-1)}
    for number, end in enumerate(("start", "end")):
        best[f"{end}_scores"], best[f"{end}_places"] = jax.lax.top_k(inside_BLC[:, :, number], count)
    return best


def means(sums: dict[str, Sum]) -> dict[str, jax.Array]:
    """Returns the metrics: total / weight for each, and its exponential for a perplexity."""
    # Weight 0 (a batch with nothing to predict) gives 0 instead of NaN.
    metrics = {name: s.total / jnp.maximum(s.weight, 1e-9) for name, s in sums.items()}
    return {name: jnp.exp(x) if name.endswith("perplexity") else x for name, x in metrics.items()}


def mean(name: str, total: float, weight: float) -> float:
    """Returns the metric of totals that were added up on the host, as `means`."""
    value = float(total / max(weight, 1e-9))
    # exp overflows a float64 above 709.
    return math.exp(min(value, 700.0)) if name.endswith("perplexity") else value
