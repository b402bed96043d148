"""Chooses the alternative that a model finds the most probable: multiple choice, cloze (CBT), Winograd schemas.

An alternative continues its text. If the text has a blank, `XXXXX` as in CBT (Hill et al. 2016) or `_` as in
WinoGrande, the alternative fills it, and is scored together with the text after it: which alternative makes the rest
the most probable, given the context before (Trinh and Le 2018; Radford et al. 2019, section 3.2).
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from contexture.analysis.scoring.families import convention_of
from contexture.analysis.trained_model import TrainedModel
from contexture.analysis.zeroshot.continuations import score_continuations
from contexture.analysis.zeroshot.standard_error import of_sum, standard_error, standard_errors
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.train.objectives import best_place, is_hit

# Underscores within a word are no blank.
_BLANK = re.compile(r"XXXXX|(?<![\w_])_+(?![\w_])")
MEASURES = {
    "accuracy": "the alternative of the highest log p",
    "accuracy_per_token": "of the highest log p / tokens",
    "accuracy_per_byte": "of the highest log p / bytes of UTF-8",
}


def filled(text: str, alternative: str, number: int) -> tuple[str, str]:
    """Returns (the context, the text to score: the alternative, with the text after the blank if there is one).

    Raises:
        DataError: when the text has several blanks.
    """
    blanks = list(_BLANK.finditer(text))
    if len(blanks) > 1:
        raise DataError(f"example {number}: the text has {len(blanks)} blanks; give it one")
    if not blanks:
        context, rest = text.rstrip(), ""
    else:
        context, rest = text[: blanks[0].start()].rstrip(), text[blanks[0].end() :]
    # Byte-level pieces begin with the space before a word, so the space is scored with the alternative.
    return context, f"{' ' if context else ''}{alternative.strip()}{rest}"


def _by_group(right: np.ndarray, groups: Sequence[str]) -> dict[str, Any]:
    """Returns {"groups": {name: figures}}, and if there are two groups their "gap"."""
    names = list(dict.fromkeys(groups))
    of = np.array([names.index(group) for group in groups])
    figures = {
        name: {
            "examples": int((of == n).sum()),
            "accuracy": float(right[of == n].mean()),
            "standard_error": standard_error(right[of == n]),
        }
        for n, name in enumerate(names)
    }
    if len(names) != 2:
        return {"groups": figures}
    return {"groups": figures, "gap": figures[names[0]]["accuracy"] - figures[names[1]]["accuracy"]}


def choose(
    model: TrainedModel,
    texts: Sequence[str],
    choices: Sequence[Sequence[str]],
    labels: Sequence[int],
    groups: Sequence[str] = (),
    *,
    batch: int = 16,
    cancel: CancelToken = NEVER,
) -> dict[str, Any]:
    """Returns how often the right alternative is the most probable one, by each of MEASURES.

    Further entries are `standard_errors` of these means; `chosen`, i64 [examples], by `accuracy`'s rule (ties go to the
    first); and `log_probs`, a list of f64 [alternatives]. An example is a hit if its right alternative is more probable
    than all others (`objectives.is_hit`).

    Args:
        texts: the text of each example.
        choices: its alternatives.
        labels: the number of the right one, from 0.
        groups: a name for each example, such as the gender of its pronoun: adds {"groups": {name: figures}}, and for
            two groups "gap", the first one's accuracy minus the other's (WinoBias: Zhao et al. 2018; Winogender:
            Rudinger et al. 2018), with the standard error √(Σ error²) of both.

    Raises:
        DataError: when there are no examples, a text has several blanks, and as `score_continuations`.
    """
    if not texts:
        raise DataError("there are no examples to choose in; give a file with one in each row")
    pairs = [
        filled(text, alternative, number)
        for number, (text, own) in enumerate(zip(texts, choices, strict=True))
        for alternative in own
    ]
    # Each distinct pair is scored once: alternatives that read alike tie to the last bit, whatever batch they are in.
    distinct = list(dict.fromkeys(pairs))
    scores = zip(distinct, score_continuations(model, distinct, batch=batch, cancel=cancel), strict=True)
    scored = [*map(dict(scores).__getitem__, pairs)]
    log_probs = np.array([each.log_prob for each in scored])
    tokens = np.array([each.tokens for each in scored])
    # At least 1: an alternative may be empty.
    sizes = np.array([max(len(own.strip().encode()), 1) for _, own in pairs])
    ends = np.cumsum([len(own) for own in choices])[:-1]
    values = dict(zip(MEASURES, (log_probs, log_probs / tokens, log_probs / sizes), strict=True))
    right = {
        name: np.array([is_hit(each, label) for each, label in zip(np.split(own, ends), labels, strict=True)])
        for name, own in values.items()
    }
    result: dict[str, Any] = {"examples": len(texts), **{name: float(own.mean()) for name, own in right.items()}}
    result["standard_errors"] = standard_errors(right)
    if groups:
        result |= _by_group(right["accuracy"], groups)
        if "gap" in result:
            errors = [figures["standard_error"] for figures in result["groups"].values()]
            result["standard_errors"]["gap"] = of_sum(errors)
    result["truncated"] = sum(each.truncated > 0 for each in scored)
    result["convention"] = f"{convention_of(model.run.model)}; accuracy: {'; '.join(MEASURES.values())}"
    by_example = np.split(log_probs, ends)
    return result | {"chosen": np.array([int(best_place(each)) for each in by_example]), "log_probs": by_example}
