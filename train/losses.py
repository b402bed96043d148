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
    """An objective (`train.objectives.Objective`) for static vectors, which are trained by nothing but tasks."""

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
    that a model which gives all labels the same logit scores 0; neither is NaN.
    """
    logits = logits.astype(jnp.float32)
    # The label's logit is selected by comparison, not by a gather: a vocabulary that is sharded stays sharded.
    is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == labels[..., None]
    label, others = jnp.where(is_label, logits, -jnp.inf).max(-1), jnp.where(is_label, -jnp.inf, logits).max(-1)
    # Less the greatest logit: no exponential overflows, and the loss is the same.
    shifted = logits - jax.lax.stop_gradient(jnp.maximum(label, others))[..., None]
    chosen = jnp.where(is_label, shifted, 0.0).sum(-1)
    return jnp.log(jnp.exp(shifted).sum(-1)) - chosen, (label > others).astype(jnp.float32)


def has_best(scores: Array) -> Array:
    """Scores (…, C) → whether one is strictly greater than all others: without one (a tie, NaN) there is no hit."""
    return cast(Array, (scores == scores.max(-1, keepdims=True)).sum(-1) == 1)


def is_hit(scores: np.ndarray, label: int) -> bool:
    """Scores (C,) → whether the label's is strictly greater than all others, as in `cross_entropy`."""
    return bool(has_best(scores)) and int(scores.argmax()) == label


def without_padding(logits_BLC: jax.Array, mask_BL: jax.Array) -> jax.Array:
    """Returns the logits of places, float32, those of padding so low that none is chosen.

    Finite: a sequence that only fills up a batch may have nothing else, and its loss, which counts nowhere, is no NaN.
    """
    return jnp.where(mask_BL[:, :, None] > 0, logits_BLC.astype(jnp.float32), -1e10)


def span_candidates(logits_BLC: jax.Array, mask_BL: jax.Array, count: int) -> dict[str, jax.Array]:
    """Returns the places that score best as the start (C = 0) and as the end (C = 1) of an answer, of equals the first:
    start_places, end_places i32 Bn, start_scores, end_scores f32 Bn; and null_scores f32 B, the sum of both at place 0.

    Differs: the original also looks at padding, where no answer is, so that it may find fewer of those that are.
    """
    logits_BLC = logits_BLC.astype(jnp.float32)
    inside_BLC = jnp.where(mask_BL[:, :, None] > 0, logits_BLC, -jnp.inf)
    count = min(count, logits_BLC.shape[1])
    best: dict[str, jax.Array] = {"null_scores": logits_BLC[:, 0].sum(-1)}
    for number, end in enumerate(("start", "end")):
        best[f"{end}_scores"], best[f"{end}_places"] = jax.lax.top_k(inside_BLC[:, :, number], count)
    return best


def means(sums: dict[str, Sum]) -> dict[str, jax.Array]:
    """Returns the metrics: total / weight of each, and exp of that for a perplexity."""
    metrics = {name: s.total / jnp.maximum(s.weight, 1e-9) for name, s in sums.items()}
    return {name: jnp.exp(x) if name.endswith("perplexity") else x for name, x in metrics.items()}


def mean(name: str, total: float, weight: float) -> float:
    """Returns the metric of totals that were added up on the host, as `means`."""
    value = float(total / max(weight, 1e-9))
    return math.exp(min(value, 700.0)) if name.endswith("perplexity") else value
