"""Whether a lower or a higher value of each metric is better, and the rank that the best checkpoint is chosen by."""

from typing import Literal

BETTER: dict[str, Literal["lower", "higher"]] = {
    # losses, and what is added to them
    **dict.fromkeys(("loss", "mlm_loss", "nsp_loss", "lm_loss", "forward_loss", "backward_loss"), "lower"),
    **dict.fromkeys(("classify_loss", "regress_loss", "tag_loss", "choice_loss", "span_loss", "mix_penalty"), "lower"),
    **dict.fromkeys(("full_perplexity", "sampled_perplexity"), "lower"),
    **dict.fromkeys(("mlm_accuracy", "nsp_accuracy", "lm_accuracy", "accuracy"), "higher"),
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
"""Whether a lower or a higher value of a metric is better. A new metric gets its line here: `rank` guesses none."""


def rank(metric: str, value: float) -> float:
    """Returns a metric's rank, the lower the better. Raises KeyError for a metric that BETTER lacks."""
    return value if BETTER[metric] == "lower" else -value
