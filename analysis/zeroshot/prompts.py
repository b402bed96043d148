"""The prompts of tasks in which a GPT writes the answer (Radford et al. 2019, sections 3.5 to 3.7)."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from contexture.analysis.zeroshot.conversations import Question
from contexture.analysis.zeroshot.referenced_texts import ReferencedTexts
from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer


def question_prompt(question: Question) -> str:
    """Returns the document, the questions before with their answers, the question, and a last `A:`."""
    turns = [f"Q: {asked}\nA: {answer}\n" for asked, answer in question.before]
    return f"{question.document}\n{''.join(turns)}Q: {question.question}\nA:"


def summary_prompt(article: str) -> str:
    """Returns the article and a line `TL;DR:`."""
    return f"{article.strip()}\nTL;DR:"


def fitting_summary_prompt(article: str, tokenizer: Tokenizer, limit: int) -> tuple[str, int]:
    """Returns `summary_prompt` with as much of the article's beginning as fits, and how many tokens are left out.

    An article says what matters first, so it loses its end.
    """

    def tokens(characters: int) -> int:
        return len(tokenizer.encode(summary_prompt(article[:characters])))

    whole = tokens(len(article))
    if whole <= limit:
        return summary_prompt(article), 0
    kept = max(bisect_right(range(len(article)), limit, key=tokens) - 1, 0)
    return summary_prompt(article[:kept]), whole - tokens(kept)


def translation_prompts(texts: Sequence[str], shown: ReferencedTexts, shots: int, seed: int) -> list[str]:
    """Returns for each text a prompt of lines `sentence = translation`, so many examples, and a last `text =`.

    White space within a text becomes a single space. Each text has examples of its own, drawn at random from `shown`,
    whose first reference is the translation; a text is not among its own examples.

    Raises: DataError for fewer examples than are to be drawn.
    """
    sources = [_line(text) for text in shown.texts]
    pairs = [f"{text} = {_line(right[0])}\n" for text, right in zip(sources, shown.references, strict=True)]
    prompts: list[str] = []
    for number, text in enumerate(map(_line, texts)):
        others = [n for n, each in enumerate(sources) if each != text] if shots else []
        if shots > len(others):
            raise DataError(
                f"shots={shots}, and there are {len(others)} examples to draw them from beside the text itself; give "
                "fewer"
            )
        drawn = np.random.default_rng((seed, number)).choice(len(others), shots, replace=False) if shots else ()
        prompts.append("".join(pairs[others[n]] for n in drawn) + f"{text} =")
    return prompts


def _line(text: str) -> str:
    return " ".join(text.split())
