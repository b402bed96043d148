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

    An article says what matters first, so its end is cut.

    Args:
        article: the text.
        tokenizer: counts the tokens.
        limit: the most tokens of the prompt.
    """

    def tokens(characters: int) -> int:
        return len(tokenizer.encode(summary_prompt(article[:characters])))

    whole = tokens(len(article))
    if whole <= limit:
        return summary_prompt(article), 0
    # Binary search over the number of characters: the count of tokens grows with it.
    kept = max(bisect_right(range(len(article)), limit, key=tokens) - 1, 0)
    return summary_prompt(article[:kept]), whole - tokens(kept)


def translation_prompts(texts: Sequence[str], shown: ReferencedTexts, shots: int, seed: int) -> list[str]:
    """Returns a prompt for each text: lines `sentence = translation` of examples, and a last `text =`.

    White space within a text becomes a single space. Each text has examples of its own; it is not among them.

    Args:
        texts: the sentences to translate.
        shown: the examples to draw from, whose first reference is the translation.
        shots: how many examples each prompt has.
        seed: of the draws.

    Raises:
        DataError: when there are fewer examples than are to be drawn.
    """
    sources = [_line(text) for text in shown.texts]
    pairs = [f"{text} = {_line(right[0])}\n" for text, right in zip(sources, shown.references, strict=True)]
    prompts: list[str] = []
    for number, text in enumerate(map(_line, texts)):
        # A text that is among the examples must not show its own translation.
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
