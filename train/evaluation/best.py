"""The best evaluation so far, and what a guess by frequency alone would reach."""

import dataclasses
import math
from typing import Any

import numpy as np

from contexture.data.errors import did_you_mean
from contexture.train import metrics
from contexture.train.errors import ConfigError


def unigram_baseline(counts_V: np.ndarray, labels_V: np.ndarray) -> dict[str, float]:
    """What guessing by frequency alone gives on labels, of which labels_V says how many are each token: the loss in
    nats of the training text's distribution (one added to every count), the accuracy of always naming its commonest
    token."""
    share_V = (counts_V + 1.0) / (counts_V.sum() + len(counts_V))
    return {
        "unigram_loss": float(-(np.log(share_V) * labels_V).sum() / labels_V.sum()),
        "unigram_accuracy": float(labels_V[counts_V.argmax()] / labels_V.sum()),
    }


def value_to_minimise(metric: str, figures: dict[str, float]) -> float:
    """What the best checkpoint is chosen by: the metric's value, turned so that the lower is the better.

    Raises ConfigError where the metric was not measured, or where it is not known which way it is better.
    """
    if metric not in figures:
        raise ConfigError(f"evaluate.metric={metric} is not measured{did_you_mean(metric, figures)}; there are "
                          + ", ".join(figures))  # fmt: skip
    if metric not in metrics.BETTER:
        known = ", ".join(name for name in figures if name in metrics.BETTER)
        raise ConfigError(f"evaluate.metric={metric} has no direction, lower or higher, in which it is better; "
                          f"choose one of {known}")  # fmt: skip
    return metrics.rank(metric, figures[metric])


@dataclasses.dataclass
class Best:
    """The best evaluation so far, and how many have come after it without a better one."""

    metric: str = "loss"
    rank: float | None = None
    step: int = 0
    evals_without_improvement: int = 0

    @classmethod
    def stored(cls, tree: dict[str, Any]) -> "Best":
        """What a checkpoint keeps of it; the first checkpoints called the count `waited`."""
        return cls(**{"evals_without_improvement" if name == "waited" else name: x for name, x in tree.items()})

    def update(self, step: int, rank: float) -> None:
        """Takes the evaluation of a step."""
        if math.isfinite(rank) and (self.rank is None or rank < self.rank):
            self.rank, self.step, self.evals_without_improvement = rank, step, 0
        else:
            self.evals_without_improvement += 1
