"""The better direction of each metric, lower or higher, the rank by which the best checkpoint is chosen, and the best
evaluation so far."""

import dataclasses
import math
from typing import Literal

BETTER: dict[str, Literal["lower", "higher"]] = {
    # losses and penalties
    **dict.fromkeys(("loss", "mlm_loss", "nsp_loss", "boundary_loss", "lm_loss"), "lower"),
    **dict.fromkeys(("forward_loss", "backward_loss"), "lower"),
    **dict.fromkeys(("classify_loss", "regress_loss", "tag_loss", "choice_loss", "span_loss", "mix_penalty"), "lower"),
    **dict.fromkeys(("full_perplexity", "sampled_perplexity"), "lower"),
    **dict.fromkeys(("mlm_accuracy", "nsp_accuracy", "boundary_accuracy", "lm_accuracy", "accuracy"), "higher"),
    **dict.fromkeys(("f1", "f1_macro", "f1_weighted", "precision", "recall", "matthews"), "higher"),
    **dict.fromkeys(("entity_f1", "entity_precision", "entity_recall"), "higher"),
    **dict.fromkeys(("exact_match", "has_answer_exact_match", "has_answer_f1"), "higher"),
    **dict.fromkeys(("no_answer_exact_match", "best_exact_match", "best_f1"), "higher"),
    **dict.fromkeys(("pearson", "spearman"), "higher"),
    **dict.fromkeys(("mse", "mae"), "lower"),
    # baselines
    **dict.fromkeys(("unigram_loss", "mean_mse"), "lower"),
    **dict.fromkeys(("unigram_accuracy", "majority_accuracy", "majority_exact_match"), "higher"),
}
"""Metric → its better direction. A new metric needs an entry here: `rank` does not guess."""


def rank(metric: str, value: float) -> float:
    """Returns a metric's rank, the lower the better. Raises KeyError for a metric that is not in BETTER."""
    return value if BETTER[metric] == "lower" else -value


@dataclasses.dataclass
class Best:
    """The best evaluation so far, and the number of evaluations after it."""

    metric: str = "loss"
    rank: float | None = None
    step: int = 0
    evals_without_improvement: int = 0

    def update(self, step: int, rank: float) -> None:
        """Takes the evaluation of a step. Ties go to the earlier step; NaN is never better."""
        # A step that ties has not improved: patience counts it.
        if math.isfinite(rank) and (self.rank is None or rank < self.rank):
            self.rank, self.step, self.evals_without_improvement = rank, step, 0
        else:
            self.evals_without_improvement += 1
