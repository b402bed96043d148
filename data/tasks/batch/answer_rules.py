"""How an answer is chosen among spans: the options of a run's task, and what its training set had."""

from collections.abc import Sequence
from dataclasses import dataclass

from contexture.data.config import TaskConfig


@dataclass(frozen=True)
class AnswerRules:
    """How an answer is chosen among the spans of a context (run_squad.py, write_predictions)."""

    # The defaults of run_squad.py: n_best_size, max_answer_length, version_2_with_negative, null_score_diff_threshold.
    n_best: int = 20
    """Starts, ends and answers that are looked at."""
    answer_length: int = 30
    """The most tokens of an answer."""
    unanswerable: bool = False
    """Whether "no answer" is an answer."""
    threshold: float = 0.0
    """No answer is given where its score exceeds the best answer's score by more than this."""


def answer_rules(task: TaskConfig, counts: Sequence[int], searched: float = 0.0) -> AnswerRules:
    """Returns the rules of a run.

    Args:
        task: the run's task.
        counts: training's questions with an answer and without.
        searched: the threshold that was best on held-out questions.
    """
    # A model that never saw a question without an answer has not learned what its score of none means.
    learned = len(counts) > 1 and counts[1] > 0
    # Three ways to a threshold: the user's number, the best one of the held-out questions (`dev`), or none (`never`).
    given = task.null_threshold not in ("dev", "never")
    threshold = float(task.null_threshold) if given else searched
    # Whoever gives a number wants empty answers, whatever training had.
    unanswerable = given or (learned and task.null_threshold == "dev")
    return AnswerRules(task.n_best, task.answer_length, unanswerable, threshold)
