"""The figures of a probe: micro F1, and where in a model's depth a task is solved (Tenney et al. 2019b, section 3)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Counts(NamedTuple):
    """Counts of labels over all targets: true positives, false positives, false negatives."""

    right: int
    wrong: int
    missed: int


def micro_f1(counts: Counts) -> float:
    """2·right / (2·right + wrong + missed); 0 where there is no label at all."""
    whole = 2 * counts.right + counts.wrong + counts.missed
    return 2 * counts.right / whole if whole else 0.0


def precision_and_recall(counts: Counts) -> tuple[float, float]:
    """right / (right + wrong), right / (right + missed); 0 where nothing is counted."""
    return tuple(counts.right / max(counts.right + other, 1) for other in (counts.wrong, counts.missed))  # pyright: ignore[reportReturnType]


def centre_of_gravity(weights_N: Sequence[float], layers: Sequence[int] | None = None) -> float:
    """Σ_n n · weight_n, weights that sum to 1; layer 0 holds the embeddings (equation 2)."""
    return float(np.dot(np.arange(len(weights_N)) if layers is None else np.asarray(layers), weights_N))


def divergence_from_uniform(weights_N: Sequence[float]) -> float:
    """KL(weights ‖ uniform) in bits: 0 for equal weights, log2 N for one layer alone (2019b, section 3.1)."""
    weights = np.asarray(weights_N, np.float64)
    kept = weights[weights > 0]
    return float(np.log2(len(weights)) + (kept * np.log2(kept)).sum())


def differentials(scores: Sequence[float]) -> list[float]:
    """score_n - score_{n-1} for each layer but the first: what layer n adds (equation 3)."""
    return np.diff(np.asarray(scores, np.float64)).tolist()


def expected_layer(scores: Sequence[float]) -> float | None:
    """Σ_n n · differential_n / Σ_n differential_n, n from 1 (equation 4): at which layer, on average, an example is
    first solved. None where the layers together add nothing."""
    gains = np.diff(np.asarray(scores, np.float64))
    total = gains.sum()
    return None if total <= 0 else float(np.dot(np.arange(1, len(scores)), gains) / total)


def majority_f1(train_TC: np.ndarray, labels_TC: np.ndarray, missed: int) -> float:
    """The F1 of predicting for each target the most frequent label of the training targets."""
    right = int(labels_TC[:, int(train_TC.sum(0).argmax())].sum())
    return micro_f1(Counts(right, len(labels_TC) - right, int(labels_TC.sum()) - right + missed))
