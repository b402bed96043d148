"""The scores of SQuAD's official scorer, evaluate-v2.0.py.

On questions that all have an answer they are also those of 1.1, unless normalising leaves nothing of an answer and
nothing of the prediction: their F1 is 1 here and in 2.0, 0 in 1.1.

    exact_match   the predicted text is one of the right answers, both normalised
    f1            2·precision·recall / (precision + recall) of their words as multisets, that of the closest answer

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
    """One question's scores. answered: of the answer that was given; forced: of the best text, whatever was given;
    silent: of no answer; null: how far no answer scored above the best text."""

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
    answers = [text for text in gold if normalised(text)] or [""]
    return max(_exact(predicted, text) for text in answers), max(_f1(predicted, text) for text in answers)


def _exact(predicted: str, gold: str) -> float:
    return float(normalised(predicted) == normalised(gold))


def _f1(predicted: str, gold: str) -> float:
    words, right = normalised(predicted).split(), normalised(gold).split()
    if not words or not right:
        # No answer is right where there is none, and nothing else is.
        return float(words == right)
    common = (Counter(words) & Counter(right)).total()
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(right)
    return 2 * precision * recall / (precision + recall)


def figures(scored: Sequence[Scored]) -> dict[str, float]:
    """Returns the scores of a set; of one with questions that have no answer also has_answer_…,
    no_answer_exact_match and best_….

    best_…: with the threshold of `null` that gives the best score. Raises ValueError without a question.
    """
    if not scored:
        raise ValueError("nothing to score: no examples")
    result = {"exact_match": _mean(scored, 0), "f1": _mean(scored, 1)}
    with_answer = [each for each in scored if each.has_answer]
    without = [each for each in scored if not each.has_answer]
    if not without:
        return result
    if with_answer:
        result |= {"has_answer_exact_match": _mean(with_answer, 0), "has_answer_f1": _mean(with_answer, 1)}
    result["no_answer_exact_match"] = _mean(without, 0)
    for name, which in (("exact_match", 0), ("f1", 1)):
        result[f"best_{name}"], result[f"best_{name}_threshold"] = best_threshold(scored, which)
    return result


def best_threshold(scored: Sequence[Scored], which: int) -> tuple[float, float]:
    """Returns (the best mean, its threshold): no answer is given where `null` is above the threshold. which: 0 exact
    match, 1 F1 (find_best_thresh).

    The threshold lies midway between two questions, so that the last bits of scores change no answer.

    Differs: the official scorer is handed texts of which some are empty by then; here each question has its best text.
    Where no answer at all is best, its threshold is 0, below which no probability is; here it is below every `null`.
    """
    nulls = sorted((each for each in scored if math.isfinite(each.null)), key=lambda each: each.null)
    # Below every threshold questions are left without an answer; then they are answered one by one. Where a score is no
    # finite number the threshold changes nothing.
    current = best = sum(each.forced[which] if each.null == -math.inf else each.silent[which] for each in scored)
    threshold = min(nulls[0].null - 1, math.nextafter(nulls[0].null, -math.inf)) if nulls else 0.0
    for n, each in enumerate(nulls):
        current += each.forced[which] - each.silent[which]
        following = nulls[n + 1].null if n + 1 < len(nulls) else math.inf
        # Questions of one score are answered together.
        if current > best and following > each.null:
            best, threshold = current, _between(each.null, following)
    return best / len(scored), threshold


def _between(low: float, high: float) -> float:
    """Returns a number from low to below high: their middle, or 1 above low where there is no end."""
    middle = low + 1 if high == math.inf else (low + high) / 2
    return middle if low <= middle < high else low


def _mean(scored: Sequence[Scored], which: int) -> float:
    return sum(each.answered[which] for each in scored) / len(scored)
