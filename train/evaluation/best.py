"""A metric as a value to minimise, a note on a better step, and the unigram baseline."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from contexture.data.errors import did_you_mean
from contexture.train import metric_directions as metrics
from contexture.train.errors import ConfigError

NO_CHECKPOINT = (
    "there is no checkpoint of it: --evaluate.patience saves at each evaluation, --save.every N every N steps"
)


def unigram_baseline(counts_V: np.ndarray, labels_V: np.ndarray) -> dict[str, float]:
    """p = (count + 1) / Σ (count + 1) of the training text; loss = -Σ labels · log p / Σ labels, in nats.

    The accuracy comes from always predicting the most frequent token.

    Args:
        counts_V: how often each token occurs in the training text.
        labels_V: how often each token is to be predicted in the held-out text.
    """
    # Add-one smoothing: a token that the training text lacks must not make the loss infinite.
    prob_V = (counts_V + 1.0) / (counts_V.sum() + len(counts_V))
    return {
        "unigram_loss": float(-(np.log(prob_V) * labels_V).sum() / labels_V.sum()),
        "unigram_accuracy": float(labels_V[counts_V.argmax()] / labels_V.sum()),
    }


def value_to_minimise(metric: str, figures: dict[str, float]) -> float:
    """Returns a metric's value, negated if higher is better: the best checkpoint has the lowest.

    Raises ConfigError for a metric that was not measured, or whose better direction is not known.
    """
    # Called with names alone before training, so that a misspelt metric is refused at once.
    if metric not in figures:
        raise ConfigError(
            f"evaluate.metric={metric} is not measured{did_you_mean(metric, figures)}; there are " + ", ".join(figures)
        )
    # A metric without a direction (a threshold, say) cannot choose a checkpoint.
    if metric not in metrics.BETTER:
        known = ", ".join(name for name in figures if name in metrics.BETTER)
        raise ConfigError(
            f"evaluate.metric={metric} has no direction, lower or higher, in which it is better; choose one of {known}"
        )
    return metrics.rank(metric, figures[metric])


def note_better(records: Iterable[Mapping[str, Any]], metric: str, best: int, saved: Iterable[int]) -> str | None:
    """Returns a line about an evaluation that was better than the best checkpoint's; None if there was none.

    Args:
        records: the lines of a metrics.jsonl.
        metric: the metric that decides.
        best: the step of the best checkpoint.
        saved: the steps of all good checkpoints.
    """
    # Step 0 is the model that the run was initialised from, which is no checkpoint of this run.
    held = {r["step"]: r[metric] for r in records if r["split"] == "dev" and r["step"] and r.get(metric) is not None}
    if best not in held:
        return None
    # Steps that were evaluated but not saved: the best one may be among them, out of reach.
    unsaved = held.keys() - {*saved}
    # A tie is no better: the best checkpoint comes first among equals, then the earlier step.
    step = min({best} | unsaved, key=lambda step: (metrics.rank(metric, held[step]), step != best, step))
    if step == best:
        return None
    figures = f"{metric} {held[step]:.4g} against {held[best]:.4g}"
    return f"step {step} was better than step {best} ({figures}), but {NO_CHECKPOINT}"
