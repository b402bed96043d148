"""The scores of SQuAD's official scorer, evaluate-v2.0.py.

If all questions have an answer, the scores equal version 1.1's, unless normalising leaves nothing of an answer and
nothing of the prediction: then F1 is 1 here and in 2.0, and 0 in 1.1.

    exact_match   the predicted text is one of the right answers, both normalised
    f1            2·precision·recall / (precision + recall) of their words as multisets, for the closest answer

Normalised: in lower case, without ASCII punctuation, then without the words a, an, the; white space as single spaces. A
question without an answer has the one right answer "". All scores are means over questions, from 0 to 1.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of one question, each as (exact match, F1).

    Args:
        answered: of the answer that was given
        forced: of the best text, whatever was given
        silent: of giving no answer
        null: how far "no answer" scored above the best text
    """

    has_answer: bool
    answered: tuple[float, float]
    forced: tuple[float, float]
    silent: tuple[float, float]
    null: float


def normalised(text: str) -> str:
    """Returns a text as it is compared: "The  Eiffel-Tower!" → "eiffeltower"."""
    # Articles last: "a-b" is no longer one once its hyphen is gone.
    plain = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def text_scores(predicted: str, gold: Sequence[str]) -> tuple[float, float]:
    """Returns (exact match, F1) of a text against right answers, the best of each."""
    # As the official scorer: answers that normalise to nothing are dropped, and with none left "" is right.
    answers = [text for text in gold if normalised(text)] or [""]
    return max(_exact(predicted, text) for text in answers), max(_f1(predicted, text) for text in answers)


def _exact(predicted: str, gold: str) -> float:
    return float(normalised(predicted) == normalised(gold))


def _f1(predicted: str, gold: str) -> float:
    words, right = normalised(predicted).split(), normalised(gold).split()
    if not words or not right:
        # If either is empty, only an empty prediction for an unanswerable question is right.
        return float(words == right)
    # Multisets: a word that is predicted twice and occurs once counts once.
    common = (Counter(words) & Counter(right)).total()
    if not common:
        return 0.0
    # Both lengths count with repetitions.
    precision, recall = common / len(words), common / len(right)
    return 2 * precision * recall / (precision + recall)


def figures(scored: Sequence[Scored]) -> dict[str, float]:
    """Returns the scores of a set; if some questions have no answer also has_answer_…, no_answer_exact_match, best_….

    best_… is reached with the threshold of `null` that gives the best score. Raises ValueError without a question.
    """
    if not scored:
        raise ValueError("nothing to score: no examples")
    result = {"exact_match": _mean(scored, 0), "f1": _mean(scored, 1)}
    with_answer = [each for each in scored if each.has_answer]
    without = [each for each in scored if not each.has_answer]
    # SQuAD 1.1: the two figures are all there is.
    if not without:
        return result
    if with_answer:
        result |= {"has_answer_exact_match": _mean(with_answer, 0), "has_answer_f1": _mean(with_answer, 1)}
    result["no_answer_exact_match"] = _mean(without, 0)
    # Each metric has a best threshold of its own, as --na-prob-file reports them.
    for name, which in (("exact_match", 0), ("f1", 1)):
        result[f"best_{name}"], result[f"best_{name}_threshold"] = best_threshold(scored, which)
    return result


def best_threshold(scored: Sequence[Scored], which: int) -> tuple[float, float]:
    """Returns (the best mean, its threshold): no answer is given where `null` is above the threshold. which: 0 exact
    match, 1 F1 (find_best_thresh).

    The threshold lies midway between two questions, so that the last bits of scores change no answer.

    Differs: the official scorer gets texts that may be empty already; here each question has its best text. If giving
    no answer at all is best, the original's threshold is 0, below every probability; here it is below every `null`.
    """
    nulls = sorted((each for each in scored if math.isfinite(each.null)), key=lambda each: each.null)
    # Start below every `null`, where no question is answered; then answer them one by one, in ascending order. One pass
    # over sorted questions instead of a score for each threshold. An infinite `null` is on one side of any threshold.
    current = best = sum(each.forced[which] if each.null == -math.inf else each.silent[which] for each in scored)
    threshold = min(nulls[0].null - 1, math.nextafter(nulls[0].null, -math.inf)) if nulls else 0.0
    for n, each in enumerate(nulls):
        current += each.forced[which] - each.silent[which]
        following = nulls[n + 1].null if n + 1 < len(nulls) else math.inf
        # Questions with equal scores are answered together: no threshold separates them.
        if current > best and following > each.null:
            best, threshold = current, _between(each.null, following)
    return best / len(scored), threshold


def _between(low: float, high: float) -> float:
    """Returns a number in [low, high): the middle, or low + 1 if high is infinite."""
    middle = low + 1 if high == math.inf else (low + high) / 2
    # Two neighbouring floats have no middle: rounding gives one of them.
    return middle if low <= middle < high else low


def _mean(scored: Sequence[Scored], which: int) -> float:
    return sum(each.answered[which] for each in scored) / len(scored)
